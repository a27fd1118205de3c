"""root.toml and leaf.toml: what may stand in them, and how they become a tier's settings."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta, Struct, field

from dlbctl.core import toml
from dlbctl.core.errors import ConfigError
from dlbctl.core.settings import (
    EndpointSettings,
    HealthSettings,
    QueueSettings,
    RetrySettings,
    Role,
    TargetSettings,
    TierSettings,
    Timeouts,
)
from dlbctl.router.limits import HttpLimits
from dlbctl.router.sections import (
    AccessLogSection,
    CellSection,
    LeafSection,
    RootSection,
    RouterSection,
    ServerSection,
    check_addresses,
    check_servers,
    check_unique,
)
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
CommonRetries = Annotated[
    RetrySettings,
    Meta(description="When a request whose attempt failed is sent to another target, and how often."),
]
Health = Annotated[
    HealthSettings,
    Meta(description="When an inference server is taken for ill, and how it comes back."),
]
Queue = Annotated[
    QueueSettings,
    Meta(
        description="How many requests of an endpoint wait for an inference server with room (`slots`), and how long."
    ),
]
ClientLimits = Annotated[
    HttpLimits,
    Meta(description="What a client may send, and how long it may take over it: bytes and seconds."),
]


AccessLogs = Annotated[
    AccessLogSection,
    Meta(description="A line of JSON for each request that is over, without its text, its headers or its query."),
]


class RootFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole root.toml."""

    root: Annotated[RootSection, Meta(description="The root router itself.")]
    cell: Annotated[
        tuple[CellSection, ...],
        Meta(description="A cell that requests may be sent to; at least one. It has either leaves or servers."),
    ] = ()
    endpoint: Endpoints = ()
    timeouts: CommonTimeouts = field(default_factory=Timeouts)
    retries: CommonRetries = field(default_factory=RetrySettings)
    health: Health = field(default_factory=HealthSettings)
    queue: Queue = field(default_factory=QueueSettings)
    http: ClientLimits = field(default_factory=HttpLimits)
    access_log: AccessLogs = field(default_factory=AccessLogSection)

    role: ClassVar[Role] = "root"

    @property
    def section(self) -> RootSection:
        """The table of the router itself."""
        return self.root

    def check(self, file: str) -> None:
        """Raise ConfigError for what types cannot say."""
        self.root.check(f"{file}: root")
        _check_common(self, file)
        self.http.check(f"{file}: http")
        if not self.cell:
            raise ConfigError(f"{file}: cell is missing", hint="a root needs at least one [[cell]] to route to")
        check_unique((cell.name for cell in self.cell), f"{file}: cell", "name")
        for index, cell in enumerate(self.cell):
            cell.check(f"{file}: cell[{index}]")
        addresses = (cell.addresses(f"cell[{index}]") for index, cell in enumerate(self.cell))
        check_addresses(chain.from_iterable(addresses), file)

    def tier(self) -> TierSettings:
        """The root tier's settings."""
        targets = tuple(
            TargetSettings(
                cell.name,
                tuple(Address(url).url for url in cell.leaves) or (LOCAL_PREFIX + cell.name,),
                capacity_rps=cell.capacity_rps,
                hardware=cell.hardware,
            )
            for cell in self.cell
        )
        return _tier("root", self, self.root, targets)

    def local_leaves(self) -> dict[str, TierSettings]:
        """The leaf tiers that run in this process, by the address the root tier knows them under."""
        return {
            LOCAL_PREFIX + cell.name: TierSettings(
                "leaf",
                cell.name,
                _servers(cell.server),
                # A root's policies are for choosing cells; its leaves choose servers by their own default.
                tuple(
                    EndpointSettings(e.name, timeouts=e.timeouts, retries=e.retries, exploration=e.exploration)
                    for e in self.endpoint
                ),
                self.timeouts,
                _seed(self.root),
                retries=self.retries,
                health=self.health,
                queue=self.queue,
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
    retries: CommonRetries = field(default_factory=RetrySettings)
    health: Health = field(default_factory=HealthSettings)
    queue: Queue = field(default_factory=QueueSettings)
    http: ClientLimits = field(default_factory=HttpLimits)
    access_log: AccessLogs = field(default_factory=AccessLogSection)

    role: ClassVar[Role] = "leaf"

    @property
    def section(self) -> LeafSection:
        """The table of the router itself."""
        return self.leaf

    def check(self, file: str) -> None:
        """Raise ConfigError for what types cannot say."""
        self.leaf.check(f"{file}: leaf")
        _check_common(self, file)
        self.http.check(f"{file}: http")
        if not self.server:
            raise ConfigError(f"{file}: server is missing", hint="a leaf needs at least one [[server]]")
        check_servers(self.server, f"{file}: server")
        check_addresses(((f"server[{index}].url", server.url) for index, server in enumerate(self.server)), file)

    def tier(self) -> TierSettings:
        """The leaf tier's settings."""
        return _tier("leaf", self, self.leaf, _servers(self.server))


def load(path: Path, wanted: type[File], environment: Mapping[str, str]) -> File:
    """Read, decode and check a configuration file. ConfigError says where and what to do."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    return parse(text, wanted, file=str(path), environment=environment)


def parse(text: str, wanted: type[File], *, file: str, environment: Mapping[str, str] | None = None) -> File:
    """Decode and check the text of a file; one environment may override values of a root and of a leaf."""
    sections = {*RootFile.__struct_fields__, *LeafFile.__struct_fields__}
    return toml.decode(text, wanted, file=file, environment=environment, beside=sections)


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


# -- conversions and checks ------------------------------------------------------------------------------


def _tier(role: Role, file: File, section: RouterSection, targets: tuple[TargetSettings, ...]) -> TierSettings:
    return TierSettings(
        role,
        section.cell,
        targets,
        file.endpoint,
        file.timeouts,
        _seed(section),
        section.max_in_flight,
        file.retries,
        file.health,
        file.queue,
    )


def _seed(section: RouterSection) -> int:
    return section.seed if section.seed >= 0 else secrets.randbits(48)


def _servers(servers: Iterable[ServerSection]) -> tuple[TargetSettings, ...]:
    return tuple(server.target() for server in servers)


def _check_common(file: RootFile | LeafFile, name: str) -> None:
    file.timeouts.check(f"{name}: timeouts")
    file.retries.check(f"{name}: retries")
    file.health.check(f"{name}: health")
    file.queue.check(f"{name}: queue")
    check_unique((endpoint.name for endpoint in file.endpoint), f"{name}: endpoint", "name")
    for index, endpoint in enumerate(file.endpoint):
        endpoint.check(f"{name}: endpoint[{index}]")
