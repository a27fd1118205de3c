"""root.toml and leaf.toml: what may stand in them, and how they become a tier's settings."""

from __future__ import annotations

import ipaddress
import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct, field

from dlbctl.core import toml
from dlbctl.core.errors import ConfigError
from dlbctl.core.settings import EndpointSettings, Role, TargetSettings, TierSettings, Timeouts
from dlbctl.router.request import HttpLimits
from dlbctl.router.upstream import Address

SEARCH_PATH = (Path(), Path("/etc/dlbctl"))
# The pseudo-address of a cell whose leaf runs in the root's own process.
LOCAL_PREFIX = "local:"

File = TypeVar("File", "RootFile", "LeafFile")


class RouterSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What root and leaf have in common.

    listen: where clients come in; empty for none. admin: unix:PATH or host:port (loopback). readiness_grace_s:
    how long SIGTERM leaves the doors open after /readyz says 503. drain_s: how long streams may then go on.
    """

    listen: str = "127.0.0.1:8080"
    peer_token_file: str = ""
    admin: str = ""
    half_close: Literal["close", "allow"] = "close"
    readiness_grace_s: float = 5.0
    drain_s: float = 600.0
    probe_interval_ms: float = 10.0
    event_log: str = ""
    seed: int = -1


class RootSection(RouterSection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[root]` table. cell: where this root stands."""

    cell: str = "local"


class LeafSection(RouterSection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[leaf]` table. peer_listen: where roots send requests and read the state stream."""

    cell: str
    listen: str = ""
    peer_listen: str = "127.0.0.1:9081"


class ServerSection(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[server]]`: one inference server.

    endpoints: served models, learned from /v1/models when left out. weight: against a standard server of the
    cell. slots: most requests in flight to it, 0 for no limit.
    """

    url: str
    name: str = ""
    endpoints: tuple[str, ...] = ()
    weight: float = 1.0
    slots: int = 0


class CellSection(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[cell]]`: the peer addresses of its leaves, or its servers, whose leaf then runs in this process."""

    name: str
    leaves: tuple[str, ...] = ()
    server: tuple[ServerSection, ...] = ()


class RootFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole root.toml."""

    root: RootSection
    cell: tuple[CellSection, ...] = ()
    endpoint: tuple[EndpointSettings, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    http: HttpLimits = field(default_factory=HttpLimits)

    def check(self, file: str) -> None:
        """Raise ConfigError for what types cannot say."""
        _check_section(self.root, f"{file}: root", peer_listen="")
        _check_common(self.endpoint, self.timeouts, file)
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

    leaf: LeafSection
    server: tuple[ServerSection, ...] = ()
    endpoint: tuple[EndpointSettings, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    http: HttpLimits = field(default_factory=HttpLimits)

    def check(self, file: str) -> None:
        """Raise ConfigError for what types cannot say."""
        _check_section(self.leaf, f"{file}: leaf", peer_listen=self.leaf.peer_listen)
        _check_common(self.endpoint, self.timeouts, file)
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
    if not colon or not port.isdigit() or int(port) > 65535:
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
        if getattr(section, key) < 0:
            raise ConfigError(f"{where}.{key}: cannot be negative")
    if not 2 <= section.probe_interval_ms <= 1000:
        raise ConfigError(f"{where}.probe_interval_ms: {section.probe_interval_ms:g} is outside 2 to 1000")
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
    if not cell.name:
        raise ConfigError(f"{where}.name: a cell needs a name")
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
        if server.weight <= 0:
            raise ConfigError(f"{where}[{index}].weight: must be positive")
        if server.slots < 0:
            raise ConfigError(f"{where}[{index}].slots: cannot be negative", hint="use 0 for no limit")
    _check_unique((_server_name(server) for server in servers), where, "name or address")


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
