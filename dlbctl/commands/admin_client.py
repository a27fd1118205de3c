"""Speaks to the admin listeners of running routers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dlbctl.core.errors import DlbctlError, UnreachableError, UsageError

if TYPE_CHECKING:
    import httpx

Row = TypeVar("Row")

TIMEOUT_S = 5.0
ADMIN_HELP = (
    "Admin address, unix:PATH or host:port; several with commas [default: DLBCTL_ADMIN, then the local sockets]."
)


def addresses(given: str | None) -> list[str]:
    """The admin addresses to use: those given, else DLBCTL_ADMIN, else the local sockets there are."""
    text = given or os.environ.get("DLBCTL_ADMIN", "")
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    return chosen or _local_sockets()


def _local_sockets() -> list[str]:
    from dlbctl.router.config import default_admin

    for role in ("root", "leaf"):
        address = default_admin(role)
        if Path(address.removeprefix("unix:")).exists():
            return [address]
    raise UnreachableError(
        "no running router found: neither the root's nor the leaf's admin socket exists",
        hint="name one with --admin ADDR or DLBCTL_ADMIN",
    )


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
                raise DlbctlError(msgspec.json.decode(response.content)["error"])
            return msgspec.json.decode(response.content, type=wanted)
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise UnreachableError(f"what answers at {self.address} is no admin listener of dlbctl") from error
