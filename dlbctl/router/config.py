"""root.toml and leaf.toml: what may stand in them, and how they become a tier's settings."""

from __future__ import annotations

import ipaddress
import math
import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct, field

from dlbctl.core import toml
from dlbctl.core.errors import ConfigError
from dlbctl.core.settings import EndpointSettings, Role, TargetSettings, TierSettings, Timeouts
from dlbctl.router.request import HttpLimits
from dlbctl.router.upstream import Address

SEARCH_PATH = (Path(), Path("/etc/dlbctl"))
# The pseudo-address of a cell whose leaf runs in the root's own process.
LOCAL_PREFIX = "local:"

File = TypeVar("File", "RootFile", "LeafFile")

# The tables that both files have.
Endpoints = Annotated[
    tuple[EndpointSettings, ...],
    Meta(description="A model whose requests are routed otherwise than by default. Models without one are served too."),
]
CommonTimeouts = Annotated[
    Timeouts,
    Meta(description="How long each phase of an attempt may last, in seconds; 0 for no limit."),
]
ClientLimits = Annotated[
    HttpLimits,
    Meta(description="What a client may send, and how long it may take over it: bytes and seconds."),
]


class RouterSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What root and leaf have in common."""

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


class RootSection(RouterSection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[root]` table."""

    cell: Annotated[str, Meta(description="The cell that this root stands in.")] = "local"
    probe_interval_ms: Annotated[
        float,
        Meta(description="Milliseconds between the states that a root wants from each cell, 2 to 1000."),
    ] = 10.0


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


class RootFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole root.toml."""

    root: Annotated[RootSection, Meta(description="The root router itself.")]
    cell: Annotated[
        tuple[CellSection, ...],
        Meta(description="A cell that requests may be sent to; at least one. It has either leaves or servers."),
    ] = ()
    endpoint: Endpoints = ()
    timeouts: CommonTimeouts = field(default_factory=Timeouts)
    http: ClientLimits = field(default_factory=HttpLimits)

    def check(self, file: str) -> None:
        """Raise ConfigError for what types cannot say."""
        _check_section(self.root, f"{file}: root", peer_listen="")
        if not 2 <= self.root.probe_interval_ms <= 1000:
            raise ConfigError(f"{file}: root.probe_interval_ms: {self.root.probe_interval_ms:g} is outside 2 to 1000")
        if not self.root.listen:
            raise ConfigError(f"{file}: root.listen: a root needs a place for clients", hint='"127.0.0.1:8080"')
        _check_common(self.endpoint, self.timeouts, file)
        self.http.check(f"{file}: http")
        if not self.cell:
            raise ConfigError(f"{file}: cell is missing", hint="a root needs at least one [[cell]] to route to")
        _check_unique((cell.name for cell in self.cell), f"{file}: cell", "name")
        for index, cell in enumerate(self.cell):
            _check_cell(cell, f"{file}: cell[{index}]")

    def tier(self) -> TierSettings:
        """The root tier's settings."""
        targets = tuple(
            TargetSettings(cell.name, tuple(Address(url).url for url in cell.leaves) or (LOCAL_PREFIX + cell.name,))
            for cell in self.cell
        )
        return _tier("root", self.root, targets, self.endpoint, self.timeouts)

    def local_leaves(self) -> dict[str, TierSettings]:
        """The leaf tiers that run in this process, by the address the root tier knows them under."""
        return {
            LOCAL_PREFIX + cell.name: TierSettings(
                "leaf",
                cell.name,
                _servers(cell.server),
                # A root's policies are for choosing cells; its leaves choose servers by their own default.
                tuple(EndpointSettings(name=e.name, timeouts=e.timeouts) for e in self.endpoint),
                self.timeouts,
                _seed(self.root),
            )
            for cell in self.cell
            if cell.server
        }


class LeafFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole leaf.toml."""

    leaf: Annotated[LeafSection, Meta(description="The leaf router itself.")]
    server: Annotated[
        tuple[ServerSection, ...],
        Meta(description="An inference server of this leaf's cell; at least one."),
    ] = ()
    endpoint: Endpoints = ()
    timeouts: CommonTimeouts = field(default_factory=Timeouts)
    http: ClientLimits = field(default_factory=HttpLimits)

    def check(self, file: str) -> None:
        """Raise ConfigError for what types cannot say."""
        _check_section(self.leaf, f"{file}: leaf", peer_listen=self.leaf.peer_listen)
        _check_common(self.endpoint, self.timeouts, file)
        self.http.check(f"{file}: http")
        if not self.server:
            raise ConfigError(f"{file}: server is missing", hint="a leaf needs at least one [[server]]")
        _check_servers(self.server, f"{file}: server")

    def tier(self) -> TierSettings:
        """The leaf tier's settings."""
        return _tier("leaf", self.leaf, _servers(self.server), self.endpoint, self.timeouts)


def load(path: Path, wanted: type[File], environment: Mapping[str, str]) -> File:
    """Read, decode and check a configuration file. ConfigError says where and what to do."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    settings = toml.decode(text, wanted, file=str(path), environment=environment)
    settings.check(str(path))
    return settings


def find(role: Role, given: Path | None) -> Path:
    """The file to use: the one given, else ./ROLE.toml, else /etc/dlbctl/ROLE.toml."""
    if given is not None:
        return given
    for folder in SEARCH_PATH:
        path = folder / f"{role}.toml"
        if path.is_file():
            return path
    looked = " nor ".join(str(folder / f"{role}.toml") for folder in SEARCH_PATH)
    raise ConfigError(f"no configuration: neither {looked} exists", hint=f"dlbctl {role} --config FILE")


def read_token(section: RouterSection) -> bytes:
    """The shared peer token, empty when none is configured. A readable file with a token, or ConfigError."""
    if not section.peer_token_file:
        return b""
    try:
        token = Path(section.peer_token_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"peer_token_file: {section.peer_token_file}: {error.strerror}") from error
    if not token or any(byte <= 32 or byte > 126 for byte in token):
        raise ConfigError(f"peer_token_file: {section.peer_token_file}: holds no token of printable characters")
    return token


def admin_address(section: RouterSection, role: Role) -> str:
    """Where the admin listener is: as configured, else a unix socket of this user."""
    return section.admin or default_admin(role)


def default_admin(role: Role) -> str:
    """unix:PATH of this user's default admin socket for a role."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "dlbctl" if runtime else Path(tempfile.gettempdir()) / f"dlbctl-{os.getuid()}"
    return f"unix:{folder / (role + '.sock')}"


def host_and_port(text: str, where: str) -> tuple[str, int]:
    """Split host:port (an IPv6 host in brackets). ConfigError when it is not that."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{where}: {text!r} is not host:port", hint='for instance "127.0.0.1:8080"')
    return host.strip("[]") or "0.0.0.0", int(port)


# -- checks and conversions ------------------------------------------------------------------------------


def _tier(
    role: Role,
    section: RouterSection,
    targets: tuple[TargetSettings, ...],
    endpoints: tuple[EndpointSettings, ...],
    timeouts: Timeouts,
) -> TierSettings:
    cell = section.cell if isinstance(section, RootSection | LeafSection) else ""
    return TierSettings(role, cell, targets, endpoints, timeouts, _seed(section))


def _seed(section: RouterSection) -> int:
    return section.seed if section.seed >= 0 else secrets.randbits(48)


def _servers(servers: Iterable[ServerSection]) -> tuple[TargetSettings, ...]:
    return tuple(
        TargetSettings(_server_name(s), (Address(s.url).url,), s.endpoints, s.weight, s.slots) for s in servers
    )


def _server_name(server: ServerSection) -> str:
    return server.name or Address(server.url).authority.decode()


def _check_section(section: RouterSection, where: str, *, peer_listen: str) -> None:
    for key in ("readiness_grace_s", "drain_s"):
        if not getattr(section, key) >= 0:  # nor not-a-number
            raise ConfigError(f"{where}.{key}: cannot be negative")
    _check_name(section.cell if isinstance(section, RootSection | LeafSection) else "", f"{where}.cell")
    if section.listen:
        host_and_port(section.listen, f"{where}.listen")
    if section.admin and not section.admin.startswith("unix:"):
        _check_loopback(section.admin, f"{where}.admin", "use unix:PATH, or a loopback address")
    if peer_listen and not section.peer_token_file:
        _check_loopback(peer_listen, f"{where}.peer_listen", "set peer_token_file to let other machines in")


def _check_loopback(text: str, where: str, hint: str) -> None:
    host, _ = host_and_port(text, where)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ConfigError(f"{where}: {text!r} is open to other machines and nothing protects it", hint=hint)


def _check_common(endpoints: tuple[EndpointSettings, ...], timeouts: Timeouts, file: str) -> None:
    timeouts.check(f"{file}: timeouts")
    _check_unique((endpoint.name for endpoint in endpoints), f"{file}: endpoint", "name")
    for index, endpoint in enumerate(endpoints):
        endpoint.check(f"{file}: endpoint[{index}]")


def _check_cell(cell: CellSection, where: str) -> None:
    _check_name(cell.name, f"{where}.name")
    if bool(cell.leaves) == bool(cell.server):
        raise ConfigError(
            f"{where} ({cell.name}): needs either leaves or servers",
            hint='leaves = ["http://host:9081"] for leaf routers, [[cell.server]] to serve it from this process',
        )
    _check_unique(cell.leaves, f"{where}.leaves", "address")
    for index, leaf in enumerate(cell.leaves):
        _check_url(leaf, f"{where}.leaves[{index}]")
    _check_servers(cell.server, f"{where}.server")


def _check_servers(servers: tuple[ServerSection, ...], where: str) -> None:
    for index, server in enumerate(servers):
        _check_url(server.url, f"{where}[{index}].url")
        if server.name:
            _check_name(server.name, f"{where}[{index}].name")
        if not 0 < server.weight < math.inf:
            raise ConfigError(f"{where}[{index}].weight: must be positive")
        if server.slots < 0:
            raise ConfigError(f"{where}[{index}].slots: cannot be negative", hint="use 0 for no limit")
    _check_unique((_server_name(server) for server in servers), where, "name or address")


def _check_name(name: str, where: str) -> None:
    """Names travel in headers."""
    if not name or not name.isprintable():
        raise ConfigError(f"{where}: {name!r} is no name", hint="write one in printable text")


def _check_url(url: str, where: str) -> None:
    try:
        Address(url)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error


def _check_unique(names: Iterable[str], where: str, what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{where}: two entries have the same {what} {name!r}")
        seen.add(name)
