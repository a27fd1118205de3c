"""Imports go one way, and the core reaches neither clock, network, files nor global chance. Read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "dlbctl"
SOURCES = sorted(PACKAGE.rglob("*.py"))
CORE = sorted((PACKAGE / "core").rglob("*.py"))

# What each part may import of the others.
DRIVERS = {"router", "sim", "replay", "engine", "fleet"}
MAY_IMPORT = {
    "core": set(),
    **{driver: {"core"} for driver in DRIVERS},
    # It models the others, by their own pure modules: engine models, traces, configuration files, regions.
    "sim": {"core", "engine", "fleet", "replay", "router"},
    "commands": {"core", *DRIVERS},
    "cli.py": {"core", "commands"},
    "__main__.py": {"cli.py"},
    "__init__.py": set(),
}
# What the core would need to depend on when or where it runs.
IMPURE = {
    "asyncio", "concurrent", "datetime", "ctypes", "glob", "http", "httptools", "httpx", "io", "logging",
    "multiprocessing", "os", "pathlib", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl",
    "starlette", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid", "uvicorn", "uvloop",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every imported module, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            # `from dlbctl.core import costs` imports a module by its name.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def part(module: str) -> str | None:
    """The part of the package that a dotted name is in; None for other packages and for names of `dlbctl` itself."""
    first, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    if first != "dlbctl":
        return None
    if (PACKAGE / name).is_dir() and name:
        return name
    return f"{name}.py" if name and (PACKAGE / f"{name}.py").is_file() else None


def global_chance(tree: ast.AST) -> list[str]:
    """Uses of the generators that a whole process shares."""
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "random"]
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    names = [f"random.{alias.name}" for node in imported for alias in node.names]
    names += [ast.unparse(node) for node in used]
    shared = [name for name in names if name.startswith(("random.", "np.random", "numpy.random"))]
    return [name for name in shared if name != "random.Random"]


def impurities(tree: ast.AST) -> list[str]:
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [
        *(name for name in imports(tree) if name.partition(".")[0] in IMPURE),
        *(name for name in calls if name in IMPURE_CALLS),
        *global_chance(tree),
    ]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    mine = path.relative_to(PACKAGE).parts[0]
    found = {other for module in imports(parsed(path)) if (other := part(module)) not in {None, mine}}
    assert found <= MAY_IMPORT[mine]


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_the_core_is_pure(path: Path) -> None:
    assert impurities(parsed(path)) == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_one_module_prints(path: Path) -> None:
    calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert not prints or name_of(path) == "commands/output.py"


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from os import path",
        "import os.path",
        "def f():\n    from asyncio import sleep",
        "import random\nrandom.random()",
        "from random import choice",
        "import numpy as np\nnp.random.default_rng()",
        "open('file')",
    ],
)
def test_what_is_impure_would_be_seen(text: str) -> None:
    assert impurities(ast.parse(text))


@pytest.mark.parametrize(
    "text", ["import random\nrandom.Random(1).random()", "from random import Random", "import math"]
)
def test_what_is_pure_is_let_through(text: str) -> None:
    assert not impurities(ast.parse(text))


def test_parts_are_told_from_dotted_names() -> None:
    assert part("dlbctl.core.tier.Tier") == "core"
    assert part("dlbctl.cli.app") == "cli.py"
    assert part("dlbctl.__version__") is None
    assert part("asyncio.sleep") is None
