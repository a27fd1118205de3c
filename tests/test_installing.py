"""Installing where nothing can be compiled, which has to work all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

pytestmark = pytest.mark.slow


def wheel(folder: Path, *, without_compiler: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Make a wheel in that folder; pip shows what the build said."""
    command = [*PIP, "wheel", "--verbose", "--no-deps", "--wheel-dir", str(folder), str(SOURCES)]
    clean = {name: value for name, value in os.environ.items() if name != "DLBCTL_COMPILE"}
    if without_compiler:
        clean["CC"] = "/no/such/compiler"
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=False)


def test_without_a_compiler_the_same_package_is_installed_interpreted(tmp_path: Path) -> None:
    made = wheel(tmp_path)
    assert made.returncode == 0, made.stderr
    said = made.stdout + made.stderr
    assert "installed without its compiled request path" in said
    assert "/no/such/compiler" in said
    (file,) = tmp_path.iterdir()
    assert file.name.endswith("-py3-none-any.whl")
    files = zipfile.ZipFile(file).namelist()
    assert {"dlbctl/py.typed", "dlbctl/engine/profiles/laptop.toml", "dlbctl/core/tier.py"} <= set(files)
    assert not [name for name in files if name.startswith(("tests", "man", "build"))]
    subprocess.run([*PIP, "install", "-q", "--no-deps", "--target", str(tmp_path / "site"), str(file)], check=True)
    version = [sys.executable, "-m", "dlbctl", "--version"]
    answer = subprocess.run(version, cwd=tmp_path / "site", capture_output=True, text=True, check=True)
    assert answer.stdout.endswith("(interpreted)\n")


def test_whoever_must_have_it_compiled_is_told_why_it_cannot_be(tmp_path: Path) -> None:
    made = wheel(tmp_path, DLBCTL_COMPILE="1")
    assert made.returncode != 0
    assert "DLBCTL_COMPILE=1, and C code cannot be compiled here" in made.stdout + made.stderr


def test_compiling_can_be_turned_off(tmp_path: Path) -> None:
    made = wheel(tmp_path, without_compiler=False, DLBCTL_COMPILE="0")
    assert made.returncode == 0, made.stderr
    assert [file.name.split("-", 2)[2] for file in tmp_path.iterdir()] == ["py3-none-any.whl"]
    assert "interpreted" not in made.stdout + made.stderr
