"""The units in examples/systemd are ones that systemd takes, and its way of handing sockets over is the one here."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .acceptance.commands import EXAMPLES
from .router.live import on_loop
from .router.process import engine, leaf_file
from .router.scripted import answering, serving, sized
from .router.wire import Client, chat

UNITS = EXAMPLES / "systemd"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("role", ["root", "leaf"])
def test_systemd_has_nothing_to_say_against_the_units(role: str, tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("/usr/bin/dlbctl", "/bin/true")  # it need not be installed
        (tmp_path / unit.name.replace("@", "@a")).write_text(text)
    units = [tmp_path / f"dlbctl-{role}{ending}" for ending in (".socket", ".service", "@a.service")]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if "dlbctl" in line]
    assert (done.returncode, said) == (0, [])


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="there is no systemd-socket-activate")
@on_loop
async def test_a_router_serves_what_systemd_hands_over(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with serving(engine(answering(sized(b"{}")))) as made:
        config = leaf_file(tmp_path, made.url, listen=f"127.0.0.1:{port}", readiness_grace_s=0.0)
        command = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", sys.executable, "-m", "dlbctl", "leaf", "-c"]
        process = await asyncio.create_subprocess_exec(*command, config)
        try:
            while True:
                try:
                    client = await Client.connect(port)
                    break
                except ConnectionError:
                    await asyncio.sleep(0.01)
            # The first connection is what starts the process.
            assert (await client.ask(chat())).status == 200
            client.abort()
        finally:
            process.terminate()
            assert await process.wait() == 0
