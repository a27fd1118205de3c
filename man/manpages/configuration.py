"""dlbctl.toml(5): every file, table and key, and the policies that may be named there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from dlbctl.core.policy import COSTS, MECHANISMS, Cost, takes_cost
from dlbctl.core.settings import DEFAULT_POLICY
from dlbctl.fleet.settings import FleetSettings
from dlbctl.router.config import LeafFile, RootFile
from dlbctl.sim.network_file import NetworkSettings
from manpages.roff import Page, bold, inline, italic
from manpages.structures import Table, tables

HERE = Path(__file__).parent


class ConfigFile(NamedTuple):
    """A kind of configuration file. found: where it is looked for. example: a complete one."""

    name: str
    structure: type[Struct]
    summary: str
    found: str
    example: Path


Owners: TypeAlias = dict[type[Struct], tuple[ConfigFile, Table]]

# A further kind of file is one more entry.
FILES = (
    ConfigFile(
        "root.toml",
        RootFile,
        "Configures `dlbctl root`: where clients connect, and the cells that their requests may go to.",
        "./root.toml, /etc/dlbctl/root.toml",
        HERE / "root.toml",
    ),
    ConfigFile(
        "leaf.toml",
        LeafFile,
        "Configures `dlbctl leaf`: a cell's servers, and where roots reach this leaf.",
        "./leaf.toml, /etc/dlbctl/leaf.toml",
        HERE / "leaf.toml",
    ),
    ConfigFile(
        "FLEET.toml",
        FleetSettings,
        "Configures `dlbctl up`: regions, their engines, and the delays between them.",
        "FLEET.toml",
        HERE.parent.parent / "examples" / "configs" / "fleet-laptop.toml",
    ),
    ConfigFile(
        "NETWORK.toml",
        NetworkSettings,
        "Describes to `dlbctl simulate fluid` cells, sources of requests, and the delays between them.",
        "NETWORK.toml",
        HERE.parent.parent / "examples" / "simulate" / "three-regions.toml",
    ),
)

DESCRIPTION = """
Configuration files are TOML. A file is read and checked whole before anything starts: an unknown key, a value of the
wrong type or one that cannot be is an error that names the key's path, and the nearest key that there is.
`dlbctl check FILE` does only that.

In the lists below `[NAME]` is a table, which stands once, and `[[NAME]]` an entry of an array of tables, which may
stand many times. A number may be written without a decimal point. The names of keys tell units: `_s` is seconds,
`_ms` milliseconds, `_bytes` bytes.
"""

POLICIES = """
The policy of an endpoint is written `MECHANISM/COST`. A cost says how loaded a target is; a mechanism chooses by it.
A mechanism that takes no cost is a policy by its name alone.
Targets are cells for a root and servers for a leaf. While a cost cannot be told for each of the targets it falls back
to another one by itself, and `dlbctl inspect endpoints` says why.
"""

ENVIRONMENT = """
An environment variable overrides one value of the file of a router. `DLBCTL_ROOT__LISTEN` is `listen` of `[root]`: the
words of the path in capitals, two underscores between them. An entry of an array of tables is named by its position,
from 0, or by its `name` with an underscore for what is neither letter nor digit: `DLBCTL_CELL__0__NAME`,
`DLBCTL_ENDPOINT__QWEN3_35B__POLICY`. The value is read as TOML if it is a TOML value (`5`, `true`, `["a"]`), otherwise
it is the text itself. A variable of this form that names no section or key is an error, as in the file.
"""


def configuration_page(version: str) -> Page:
    """The page of all configuration files."""
    page = Page("dlbctl.toml", 5, "configuration files of dlbctl", version)
    page.heading("DESCRIPTION")
    page.text(DESCRIPTION)
    described = _owners()
    for file in FILES:
        page.heading(f"TABLES OF {file.name}")
        page.text(file.summary)
        _tables(page, file, described)
    _policies(page)
    page.heading("ENVIRONMENT")
    page.text(ENVIRONMENT)
    page.heading("FILES")
    for file in FILES:
        page.item(italic(file.found), file.summary)
    page.heading("EXAMPLES")
    for file in FILES:
        page.text(f"A whole {file.name}:")
        page.code(file.example.read_text(encoding="utf-8"))
    page.heading("SEE ALSO")
    page.text("dlbctl(1), dlbctl-check(1), dlbctl-leaf(1), dlbctl-policy(1), dlbctl-root(1)")
    return page


def _owners() -> Owners:
    """Where each structure's keys are listed: in the first file that has it, where it is nested least."""
    owners: Owners = {}
    for file in FILES:
        for table in sorted(tables(file.structure), key=lambda table: table.depth):
            owners.setdefault(table.structure, (file, table))
    return owners


def _tables(page: Page, file: ConfigFile, owners: Owners) -> None:
    """The tables of a file; those that an earlier file has just so are only named."""
    before = {table: other.name for other in reversed(FILES[: FILES.index(file)]) for table in tables(other.structure)}
    known: dict[str, list[str]] = {}
    for table in tables(file.structure):
        owner, listed = owners[table.structure]
        if table in before:
            known.setdefault(before[table], []).append(f"`{table.header}`")
        else:
            _table(page, table, "" if listed == table else f"`{listed.header}` of {owner.name}")
    for name, headers in known.items():
        page.subheading(f"As in {name}")
        page.text(", ".join(headers))


def _table(page: Page, table: Table, listed_at: str) -> None:
    page.subheading(table.header or "At the top of the file")
    page.text(table.description)
    if listed_at:
        page.text(f"Its keys are those of {listed_at}.")
        return
    for key in table.keys:
        page.item(f"{bold(key.name)} ({inline(key.type)})", key.text)


def _policies(page: Page) -> None:
    page.heading("POLICIES")
    page.text(POLICIES)
    page.text(" ".join(f"The default of a {role} is `{policy}`." for role, policy in DEFAULT_POLICY.items()))
    page.subheading("Mechanisms, written with a cost")
    for name in MECHANISMS.names():
        if takes_cost(name):
            page.item(bold(name), MECHANISMS.summary(name))
    page.subheading("Policies by their name alone")
    for name in MECHANISMS.names():
        if not takes_cost(name):
            page.item(bold(name), MECHANISMS.summary(name))
    page.subheading("Costs")
    for tag, text in _costs():
        page.item(tag, text)


def _costs() -> Iterator[tuple[str, str]]:
    for name in COSTS.names():
        cost = Cost.load(name)
        fallback = f" Falls back to `{cost.fallback}`." if cost.fallback else ""
        yield f"{bold(name)} ({inline(cost.unit)})", COSTS.summary(name) + fallback
