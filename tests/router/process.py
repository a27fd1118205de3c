"""Router processes as a user starts them: a configuration file, a port of their own, signals, an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .scripted import Connection, Script, sized
from .wire import Answer, Client, get


@dataclass
class Running:
    """A process that has said where it listens."""

    process: Process
    ports: dict[str, int]
    said: str = ""

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ask(self, data: bytes, listener: str = "listening") -> Answer:
        """One request on a connection of its own."""
        client = await Client.connect(self.ports[listener])
        try:
            return await client.ask(data)
        finally:
            client.abort()

    async def ready(self, status: int = 200) -> Answer:
        """Wait until /readyz says this."""
        while (answer := await self.ask(get("/readyz"))).status != status:
            await asyncio.sleep(0.01)
        return answer

    async def refuses(self) -> None:
        """Wait until no new connection is accepted."""
        with contextlib.suppress(ConnectionError):
            while True:
                client = await Client.connect(self.ports["listening"])
                client.abort()
                await asyncio.sleep(0.01)

    async def says(self, words: str) -> str:
        """Wait for a line of its log with these words."""
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.said += line
            if words in line:
                return line
        raise AssertionError(f"it ended without saying {words!r}: {self.said}")

    async def ended(self) -> tuple[int, str]:
        """Exit code and stderr, once the process has ended."""
        _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, self.said + errors.decode()


# Puts sockets where sd_listen_fds(3) has them, then becomes the command: a supervisor in a few lines.
HAND_OVER = """
import fcntl, os, sys
fds, names, *command = sys.argv[1:]
moved = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in fds.split(",")]
for fd in fds.split(","):
    os.close(int(fd))
for place, fd in enumerate(moved, 3):
    os.dup2(fd, place)
    os.close(fd)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(moved)), "LISTEN_FDNAMES": names}
os.execv(sys.executable, [sys.executable, *command])
"""
Named = Sequence[tuple[str, socket.socket]]


async def launch(
    role: str, config: Path, *, sockets: Named = (), environment: Mapping[str, str] | None = None
) -> Process:
    """Start a router. sockets: handed over to it, by name."""
    arguments = ["-m", "dlbctl", role, "--config", str(config)]
    fds = [sock.fileno() for _, sock in sockets]
    if sockets:
        names = ":".join(name for name, _ in sockets)
        arguments = ["-c", HAND_OVER, ",".join(map(str, fds)), names, *arguments]
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=PIPE, stderr=PIPE, pass_fds=fds, env=os.environ | dict(environment or {})
    )


@contextlib.asynccontextmanager
async def running(
    role: str,
    config: Path,
    listeners: int,
    *,
    sockets: Named = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Running]:
    """A process that runs for the length of a block, at most."""
    process = await launch(role, config, sockets=sockets, environment=environment)
    try:
        assert process.stdout is not None
        lines = [(await process.stdout.readline()).decode().split() for _ in range(listeners)]
        yield Running(process, {name: int(url.rpartition(":")[2]) for name, url in lines})
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def leaf_file(folder: Path, engine_url: str, **section: object) -> Path:
    """A leaf.toml on free ports, with one server that serves `m`."""
    keys = {
        "cell": "c1",
        "listen": "127.0.0.1:0",
        "peer_listen": "127.0.0.1:0",
        "admin": f"unix:{folder}/leaf.sock",
        **section,
    }
    lines = [f"{key} = {value!r}" for key, value in keys.items()]
    path = folder / "leaf.toml"
    path.write_text("[leaf]\n" + "\n".join(lines) + f'\n[[server]]\nurl = "{engine_url}"\nendpoints = ["m"]\n')
    return path


def engine(serve: Script) -> Script:
    """A server that lists its models and leaves everything else to `serve`, which has the request to hear."""

    async def script(connection: Connection) -> None:
        while True:
            if connection.peeked is None:
                connection.peeked = await connection.hear()
            if connection.peeked.url == b"/v1/models":
                connection.peeked = None
                await connection.send(sized(b'{"object":"list","data":[{"id":"m"}]}'))
            else:
                await serve(connection)

    return script
