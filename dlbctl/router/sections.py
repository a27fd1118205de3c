"""The tables of root.toml and leaf.toml: what may stand in each, and when it makes no sense."""

from __future__ import annotations

import ipaddress
import math
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from dlbctl.core.errors import ConfigError
from dlbctl.core.settings import TargetSettings
from dlbctl.router.upstream import Address

# sockaddr_un.sun_path, less its closing zero.
SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103


class RouterSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What root and leaf have in common. cell: described by each of them.

    FIXED: what a running process cannot change.
    """

    FIXED: ClassVar[frozenset[str]] = frozenset(
        {"admin", "cell", "event_log", "listen", "metrics_listen", "peer_listen", "seed"}
    )

    cell: str
    listen: Annotated[str, Meta(description="Where clients connect, `host:port`.")] = "127.0.0.1:8080"
    peer_token_file: Annotated[
        str,
        Meta(
            description="File with the token that roots and leaves prove themselves to each other with: the same "
            "in all of them. Empty for none; a leaf then listens for roots on a loopback address only."
        ),
    ] = ""
    admin: Annotated[
        str,
        Meta(
            description="Where `dlbctl inspect` and `dlbctl policy` find this process: `unix:PATH`, a socket for its "
            "user alone, or `host:port` of a loopback address. Empty for the default socket of the role."
        ),
    ] = ""
    metrics_listen: Annotated[
        str,
        Meta(
            description="Where Prometheus finds `/metrics` and nothing else, `host:port`; open to whoever reaches it. "
            "Empty for none: the metrics are on the admin listener in any case."
        ),
    ] = ""
    half_close: Annotated[
        Literal["close", "allow"],
        Meta(
            description="What a client's end of file means before its answer is whole: that it left, so that the "
            "request is cancelled (`close`), or that it only has nothing more to send (`allow`)."
        ),
    ] = "close"
    readiness_grace_s: Annotated[
        float,
        Meta(
            description="Seconds after SIGTERM in which connections are still accepted while `/readyz` already "
            "answers 503, for the balancers in front to notice."
        ),
    ] = 5.0
    drain_s: Annotated[
        float,
        Meta(description="Seconds that requests in flight may then take to end; what is left is cut."),
    ] = 600.0
    max_in_flight: Annotated[
        int,
        Meta(
            description="Most requests of all endpoints in this process at once, waiting ones included; 0 for no limit."
        ),
    ] = 0
    accept_priority: Annotated[
        bool,
        Meta(
            description="Whether clients may say how urgent a request is: `x-dlb-priority`, -100 to 100, 0 without "
            "one. The more urgent leaves a leaf's queue first, and takes the place of a less urgent one if it is full."
        ),
    ] = False
    upstream_idle_s: Annotated[
        float,
        Meta(
            description="Seconds that a connection to a server or leaf may stay unused before it is closed; "
            "0 for no limit."
        ),
    ] = 60.0
    event_log: Annotated[
        str,
        Meta(
            description="File for a log of the events that decisions follow from, in parts: `FILE`, `FILE.1` and so "
            "on. It holds no text of requests. Empty for none."
        ),
    ] = ""
    seed: Annotated[
        int,
        Meta(description="Seed of this process's random choices; negative for another one at each start."),
    ] = -1

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        for key in ("readiness_grace_s", "drain_s", "upstream_idle_s"):
            if not getattr(self, key) >= 0:  # nor not-a-number
                raise ConfigError(f"{where}.{key}: cannot be negative")
        if self.max_in_flight < 0:
            raise ConfigError(f"{where}.max_in_flight: cannot be negative", hint="use 0 for no limit")
        if self.listen:
            host_and_port(self.listen, f"{where}.listen")
        if self.metrics_listen:
            host_and_port(self.metrics_listen, f"{where}.metrics_listen")
        if self.admin.startswith("unix:"):
            _check_socket_path(self.admin, f"{where}.admin")
        elif self.admin:
            check_loopback(self.admin, f"{where}.admin", "use unix:PATH, or a loopback address")


class AccessLogSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The `[access_log]` table."""

    path: Annotated[
        str,
        Meta(
            description="File to append to, or `stdout`. A file that was moved away is made anew on SIGHUP. Empty for "
            "no access log."
        ),
    ] = ""


class RootSection(RouterSection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[root]` table."""

    cell: Annotated[str, Meta(description="The cell that this root stands in.")] = "local"
    probe_interval_ms: Annotated[
        float,
        Meta(description="Milliseconds between the states that a root wants from each cell, 2 to 1000."),
    ] = 10.0

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        RouterSection.check(self, where)
        check_name(self.cell, f"{where}.cell")
        if not 2 <= self.probe_interval_ms <= 1000:
            raise ConfigError(f"{where}.probe_interval_ms: {self.probe_interval_ms:g} is outside 2 to 1000")
        if not self.listen:
            raise ConfigError(f"{where}.listen: a root needs a place for clients", hint='"127.0.0.1:8080"')


class LeafSection(RouterSection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[leaf]` table."""

    cell: Annotated[str, Meta(description="The cell that this leaf serves.")]
    listen: Annotated[
        str,
        Meta(description="Where clients of this cell alone connect, `host:port`; empty for none."),
    ] = ""
    peer_listen: Annotated[
        str,
        Meta(
            description="Where roots send requests and read this leaf's state, `host:port`. An address that other "
            "machines reach needs a `peer_token_file`."
        ),
    ] = "127.0.0.1:9081"

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        RouterSection.check(self, where)
        check_name(self.cell, f"{where}.cell")
        host_and_port(self.peer_listen, f"{where}.peer_listen")
        if not self.peer_token_file:
            hint = "set peer_token_file to let other machines in"
            check_loopback(self.peer_listen, f"{where}.peer_listen", hint)


class ServerSection(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[server]]`: one inference server."""

    url: Annotated[str, Meta(description="Its address, `http://host:port` or `https://host:port`.")]
    name: Annotated[str, Meta(description="What it is called in tables; empty for its host and port.")] = ""
    endpoints: Annotated[
        tuple[str, ...],
        Meta(description="The models it serves; when left out, it is asked at `/v1/models`."),
    ] = ()
    weight: Annotated[
        float,
        Meta(description="How many standard servers of its cell it is worth: 2 gets twice the work."),
    ] = 1.0
    slots: Annotated[int, Meta(description="Most requests in flight to it at once; 0 for no limit.")] = 0

    @property
    def label(self) -> str:
        """What it is called: its name, or else its host and port."""
        return self.name or Address(self.url).authority.decode()

    def target(self) -> TargetSettings:
        """The server as a tier knows it."""
        return TargetSettings(self.label, (Address(self.url).url,), self.endpoints, self.weight, self.slots)

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        _check_url(self.url, f"{where}.url")
        if self.name:
            check_name(self.name, f"{where}.name")
        for index, endpoint in enumerate(self.endpoints):
            check_name(endpoint, f"{where}.endpoints[{index}]")
        if not 0 < self.weight < math.inf:
            raise ConfigError(f"{where}.weight: must be positive")
        if self.slots < 0:
            raise ConfigError(f"{where}.slots: cannot be negative", hint="use 0 for no limit")


class CellSection(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[cell]]`: its leaves, or else its servers."""

    name: Annotated[str, Meta(description="What the cell is called.")]
    leaves: Annotated[
        tuple[str, ...],
        Meta(description="`http://` addresses of its leaves, each the `peer_listen` of one."),
    ] = ()
    server: Annotated[
        tuple[ServerSection, ...],
        Meta(description="An inference server of a cell without leaves: the root's own process is then its leaf."),
    ] = ()
    capacity_rps: Annotated[
        float,
        Meta(
            description="Requests per second that one server of the cell takes at most, for the policy `mnlb`; 0 for "
            "what its latency curve says."
        ),
    ] = 0.0
    hardware: Annotated[
        str,
        Meta(
            description="What its servers are, in any words: cells of the same hardware learn from one another what "
            "their latency curves are like. Those that do not say it count as alike."
        ),
    ] = ""

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        check_name(self.name, f"{where}.name")
        if bool(self.leaves) == bool(self.server):
            raise ConfigError(
                f"{where} ({self.name}): needs either leaves or servers",
                hint='leaves = ["http://host:9081"] for leaf routers, [[cell.server]] to serve it from this process',
            )
        if not 0 <= self.capacity_rps < math.inf:
            raise ConfigError(f"{where}.capacity_rps: must be 0 or more", hint="0 takes it from the latency curve")
        for index, leaf in enumerate(self.leaves):
            _check_url(leaf, f"{where}.leaves[{index}]")
        check_servers(self.server, f"{where}.server")

    def addresses(self, where: str) -> Iterator[tuple[str, str]]:
        """Where each of its addresses stands, and the address."""
        yield from ((f"{where}.leaves[{index}]", leaf) for index, leaf in enumerate(self.leaves))
        yield from ((f"{where}.server[{index}].url", server.url) for index, server in enumerate(self.server))


def host_and_port(text: str, where: str) -> tuple[str, int]:
    """Split host:port (an IPv6 host in brackets). ConfigError when it is not that."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"{where}: {text!r} is not host:port", hint='for instance "127.0.0.1:8080"')
    return host.strip("[]") or "0.0.0.0", int(port)


def check_loopback(text: str, where: str, hint: str) -> None:
    """Refuse an address that other machines reach."""
    host, _ = host_and_port(text, where)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ConfigError(f"{where}: {text!r} is open to other machines and nothing protects it", hint=hint)


def _check_socket_path(text: str, where: str) -> None:
    """Refuse a unix:PATH that no socket can have."""
    path = os.fsencode(text.removeprefix("unix:"))
    if not path or b"\0" in path:
        raise ConfigError(f"{where}: {text!r} names no path", hint="for instance unix:/run/dlbctl/admin.sock")
    if len(path) > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{where}: the path of the socket is {len(path)} bytes long",
            hint=f"this system allows {SOCKET_PATH_BYTES}",
        )


def check_servers(servers: tuple[ServerSection, ...], where: str) -> None:
    """Check each, and that their names can be told apart."""
    for index, server in enumerate(servers):
        server.check(f"{where}[{index}]")
    check_unique((server.label for server in servers), where, "name or address")


def check_addresses(entries: Iterable[tuple[str, str]], file: str) -> None:
    """Refuse an address that stands in two places: it would be counted, and sent to, as two.

    entries: where each stands, and the address.
    """
    places: dict[tuple[str, int], str] = {}
    for where, url in entries:
        address = Address(url)
        first = places.setdefault((address.host, address.port), where)
        if first != where:
            raise ConfigError(f"{file}: {where}: {url!r} is {first} too", hint="an address can stand in one place only")


def check_name(name: str, where: str) -> None:
    """Names travel in headers."""
    if not name or not name.isprintable():
        raise ConfigError(f"{where}: {name!r} is no name", hint="write one in printable text")


def _check_url(url: str, where: str) -> None:
    try:
        Address(url)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error


def check_unique(names: Iterable[str], where: str, what: str) -> None:
    """Refuse the first name that comes twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{where}: two entries have the same {what} {name!r}")
        seen.add(name)
