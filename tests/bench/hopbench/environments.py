"""Virtual environments for the routers from PyPI that are compared: made once, kept in a cache folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEFAULT_FOLDER = Path("~/.cache/dlbctl-bench")
_INSTALL_S = 600


class UnavailableError(Exception):
    """A system that this machine cannot run; the text says why."""


def program(folder: Path, package: str, version: str) -> Path:
    """The program that `package` installs under its own name, in an environment made for it when absent."""
    home = folder.expanduser() / f"{package}-{version}"
    path = home / "bin" / package
    if not path.exists():
        _install(home, f"{package}=={version}")
    if not path.exists():
        raise UnavailableError(f"{package}=={version} installs no program of that name")
    return path


def _install(home: Path, requirement: str) -> None:
    python = str(home / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(home)],
        [python, "-m", "pip", "install", "-q", requirement],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"cannot install {requirement}: {error}") from error
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise UnavailableError(f"cannot install {requirement}: {' '.join(reason)}")
