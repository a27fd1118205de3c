"""Speaks to the admin listeners of running routers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from dlbctl.commands import output
from dlbctl.core.errors import ConfigError, DlbctlError, UnreachableError, UsageError

if TYPE_CHECKING:
    import httpx

Row = TypeVar("Row")

TIMEOUT_S = 5.0
CONFIGURATION_REFUSED = 422  # the file that a router was told to read again
ADMIN_HELP = (
    "Admin address, unix:PATH or host:port; several with commas "
    "(default: DLBCTL_ADMIN, then the local socket, then the fleet of `dlbctl up`)."
)


def addresses(given: str | None) -> list[str]:
    """The admin addresses to use: those given, else DLBCTL_ADMIN, else the local socket, else the running fleet's."""
    text = given or os.environ.get("DLBCTL_ADMIN", "")
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    return chosen or _local_socket() or _fleet_sockets()


def _local_socket() -> list[str]:
    """The default socket of this user's root, or else leaf, that answers; a killed one leaves its file behind."""
    from dlbctl.router.config import default_admin

    return [address for address in (default_admin("root"), default_admin("leaf")) if _accepts(address)][:1]


def _fleet_sockets() -> list[str]:
    """The roots of the one `dlbctl up` fleet that runs; those that were killed to see what happens are left out."""
    from dlbctl.fleet.run_folder import running_fleets

    fleets = running_fleets()
    if len(fleets) > 1:
        listed = "".join(f"\n  export DLBCTL_ADMIN={fleet.admin}" for fleet in fleets)
        raise UsageError(
            f"{len(fleets)} fleets of `dlbctl up` run: which one?", hint=f"One of these lines says:{listed}"
        )
    found = [address for fleet in fleets for address in fleet.admin.split(",") if _accepts(address)]
    if not found:
        raise UnreachableError(
            "no running router found: neither a root nor a leaf at its default admin socket, nor a `dlbctl up`",
            hint="Name one with --admin ADDR or DLBCTL_ADMIN.",
        )
    return found


def _accepts(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TIMEOUT_S)
        try:
            probe.connect(address.removeprefix("unix:"))
        except OSError:
            return False
    return True


def path_part(text: str) -> str:
    """Anything as one step of a path. Dots too: clients choose ids, and `..` would be a step back."""
    return quote(text, safe="").replace(".", "%2E")


@contextmanager
def connected(given: str | None) -> Iterator[list[AdminClient]]:
    """Clients of the routers to use, as `addresses` finds them, for the length of a block."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(AdminClient(address))) for address in addresses(given)]


def raise_all(errors: Iterable[DlbctlError]) -> None:
    """End with the errors of the routers that did not answer, if there are such: the last one is the exit code."""
    errors = list(errors)
    for error in errors[:-1]:
        output.complain(error)
    if errors:
        raise errors[-1]


def change_all(
    clients: list[AdminClient], change: Callable[[AdminClient], Row], silent: list[DlbctlError]
) -> dict[str, Row]:
    """Make a change in every router that answers, by address; `silent` gets the errors of those that do not.

    Should one refuse, say which had made it by then.
    """
    made: dict[str, Row] = {}
    for client in clients:
        try:
            made[client.address] = change(client)
        except UnreachableError as error:
            silent.append(error)
        except DlbctlError:
            if made:
                output.note(f"dlbctl: changed before the error: {', '.join(made)}")
            raise
    return made


class AdminClient:
    """One router's admin listener. UnreachableError when it does not answer."""

    def __init__(self, address: str) -> None:
        import httpx

        self.address = address
        transport, base = None, f"http://{address}"
        if address.startswith("unix:"):
            transport, base = httpx.HTTPTransport(uds=address.removeprefix("unix:")), "http://router"
        elif "://" in address:
            raise UsageError(f"--admin {address}: not an admin address", hint="write unix:PATH or host:port")
        self._client = httpx.Client(transport=transport, base_url=base, timeout=TIMEOUT_S, trust_env=False)

    def __repr__(self) -> str:
        return f"<AdminClient {self.address}>"

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def read(self, path: str, wanted: type[Row]) -> Row:
        """GET a document of the given type."""
        return self._decode(self._request("GET", path), wanted)

    def change(self, method: str, path: str, body: Any, wanted: type[Row]) -> Row:
        """Send a change and read the outcome."""
        return self._decode(self._request(method, path, body), wanted)

    def _request(self, method: str, path: str, body: Any = None) -> httpx.Response:
        import httpx

        try:
            return self._client.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(
                f"the router at {self.address} does not answer: {error}",
                hint="is it running? its configuration's `admin` says where it listens",
            ) from error

    def _decode(self, response: httpx.Response, wanted: type[Row]) -> Row:
        import msgspec

        try:
            if response.status_code >= 400:
                # Other listeners' errors are objects, in the form of OpenAI's API.
                said = msgspec.json.decode(response.content, type=dict[str, str])
                kind = ConfigError if response.status_code == CONFIGURATION_REFUSED else DlbctlError
                raise kind(f"the router at {self.address} refuses: {said['error']}")
            return msgspec.json.decode(response.content, type=wanted)
        except (msgspec.DecodeError, KeyError) as error:
            raise UnreachableError(
                f"what answers at {self.address} is no admin listener of dlbctl",
                hint="the `admin` of a router's configuration says where it is, `listen` is for clients",
            ) from error
