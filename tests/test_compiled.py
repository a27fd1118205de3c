"""The tests run over what they were asked to run over: interpreted sources, or the compiled package."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import dlbctl

from .package import FOLDER

SOURCES = Path(__file__).resolve().parents[1]
ASKED_FOR = os.environ.get("DLBCTL_TESTED", "interpreted")
REQUEST_PATH = ("core.tier", "core.costs.latency", "core.mechanisms.discrete", "router.relay", "router.eventlog")


def test_this_process_runs_what_was_asked_for() -> None:
    assert dlbctl.is_compiled() == (ASKED_FOR == "compiled")
    for name in REQUEST_PATH:
        file = str(import_module(f"dlbctl.{name}").__file__)
        assert file.endswith(".py") == (ASKED_FOR == "interpreted"), file


def test_the_processes_it_starts_do_too() -> None:
    done = subprocess.run([sys.executable, "-m", "dlbctl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dlbctl {dlbctl.__version__} ({ASKED_FOR})\n"


def test_nothing_compiled_lies_beside_the_sources() -> None:
    """It would be used in their place, however old."""
    assert not [*(SOURCES / "dlbctl").rglob("*.so"), *SOURCES.glob("*.so")]
    assert (FOLDER == SOURCES) == (ASKED_FOR == "interpreted")
