"""Runs a fleet of stand-ins in a process that a test can signal and kill: FLEET.toml DIR [START_TIMEOUT_S]."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dlbctl.core.errors import DlbctlError
from dlbctl.fleet import supervisor
from dlbctl.fleet.detach import run_detached
from dlbctl.fleet.serve import serve_fleet
from dlbctl.fleet.settings import load_fleet
from dlbctl.fleet.supervisor import Programs

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in.py")))
PROGRAMS = Programs(engine=(*STAND_IN, "engine"), leaf=(*STAND_IN, "leaf"), root=(*STAND_IN, "root"))


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main() -> None:
    settings, folder = load_fleet(Path(sys.argv[1])), Path(sys.argv[2])
    for_s = 0.2 if "short" in sys.argv else None

    def run(ready: object) -> None:
        asyncio.run(
            serve_fleet(
                settings,
                folder,
                on_ready=lambda record: ready() if callable(ready) else None,
                report=say,
                for_s=for_s,
                programs=PROGRAMS,
                start_timeout_s=2.0 if "impatient" in sys.argv else supervisor.START_TIMEOUT_S,
            )
        )

    try:
        if "detach" in sys.argv:
            run_detached(run, folder / "logs" / "up.log")
            print("ready", flush=True)
        else:
            run(lambda: print("ready", flush=True))
    except DlbctlError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
