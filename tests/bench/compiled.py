"""The compiled package of these sources: `python tests/bench/compiled.py` makes it, unless it is up to date.

A folder of its own, beside which the sources stay interpreted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "build" / "compiled"
_MADE_FROM = FOLDER / ".made-from"


class BuildError(Exception):
    """The package could not be compiled; the text ends what the installer said."""


def package() -> Path:
    """The folder to import the compiled package from, made anew when anything it is made of has changed."""
    wanted = _fingerprint()
    if not (_MADE_FROM.exists() and _MADE_FROM.read_text() == wanted):
        _install()
        _MADE_FROM.write_text(wanted)
    return FOLDER


def _fingerprint() -> str:
    """Of the sources, and of the Python that they are compiled for."""
    found = hashlib.blake2b(str(sysconfig.get_config_var("SOABI")).encode())
    for path in _sources():
        found.update(b"%b %d " % (bytes(path.relative_to(PROJECT)), path.stat().st_size))
        found.update(path.read_bytes())
    return found.hexdigest()


def _sources() -> Iterator[Path]:
    yield PROJECT / "setup.py"
    yield PROJECT / "pyproject.toml"
    for path in sorted((PROJECT / "dlbctl").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _install() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), str(PROJECT)]
    environment = os.environ | {"DLBCTL_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError((done.stdout + done.stderr)[-4000:])


if __name__ == "__main__":
    try:
        print(package())
    except BuildError as error:
        sys.exit(str(error))
