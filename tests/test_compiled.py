"""The tests run over what they were asked to run over: interpreted sources, or the compiled package."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import dlbctl

from .package import FOLDER

SOURCES = Path(__file__).resolve().parents[1]
LISTS = tomllib.loads((SOURCES / "pyproject.toml").read_text())["tool"]["dlbctl"]
COMPILED = sorted(path.relative_to(SOURCES) for pattern in LISTS["compiled"] for path in SOURCES.glob(pattern))
INTERPRETED = {Path(path) for path in LISTS["interpreted"]}
ASKED_FOR = os.environ.get("DLBCTL_TESTED", "interpreted")


def imports(path: Path) -> Iterator[Path]:
    """The files of the package that a module imports when it runs, not only for its types."""
    body = ast.parse((SOURCES / path).read_text(encoding="utf-8")).body
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dlbctl"):
            module = Path(*node.module.split("."))
            names = [module / alias.name for alias in node.names] if (SOURCES / module).is_dir() else [module]
            for name in names:
                yield name / "__init__.py" if (SOURCES / name).is_dir() else name.with_suffix(".py")


def test_this_process_runs_what_was_asked_for() -> None:
    assert dlbctl.is_compiled() == (ASKED_FOR == "compiled")
    for path in COMPILED:
        file = str(import_module(".".join(path.with_suffix("").parts)).__file__)
        assert file.endswith(".py") == (ASKED_FOR == "interpreted"), file


def test_the_processes_it_starts_do_too() -> None:
    done = subprocess.run([sys.executable, "-m", "dlbctl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dlbctl {dlbctl.__version__} ({ASKED_FOR})\n"


def test_nothing_compiled_lies_beside_the_sources() -> None:
    """It would be used in their place, however old."""
    assert not [*(SOURCES / "dlbctl").rglob("*.so"), *SOURCES.glob("*.so")]
    assert (FOLDER == SOURCES) == (ASKED_FOR == "interpreted")


@pytest.mark.parametrize("path", COMPILED, ids=str)
def test_what_a_compiled_module_imports_is_compiled_or_said_to_be_interpreted(path: Path) -> None:
    """Else a new module on the request path would be slow, and nobody would see it."""
    assert set(imports(path)) - set(COMPILED) - INTERPRETED == set()


@pytest.mark.parametrize("path", COMPILED, ids=str)
def test_a_compiled_module_defines_no_structures(path: Path) -> None:
    classes = [node for node in ast.walk(ast.parse((SOURCES / path).read_text())) if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base).rpartition(".")[2] for node in classes for base in node.bases}
    assert "Struct" not in bases
