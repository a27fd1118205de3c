"""The delay relay: one process that puts the WAN between the regions of a local fleet.

A link leads from one region's root to another region's leaf. It accepts a connection at once, which hides the
round trip that a real connect takes, so the first byte waits that long: a client that connects and asks is
answered after two round trips, one that uses an open connection after one.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import sys
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, cast

from msgspec import Struct

from dlbctl.core import toml
from dlbctl.fleet.delay_line import DelayLine, Mark, Wire, reset
from dlbctl.fleet.lifeline import watch_lifeline
from dlbctl.fleet.relay_control import serve_control


class LinkSettings(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One link: where it leads and how long that takes, one way, there and back."""

    source: str
    destination: str
    target: str  # HOST:PORT
    delay_ms: float
    back_ms: float
    jitter_ms: float = 0.0


class RelaySettings(Struct, forbid_unknown_fields=True, frozen=True):
    """The links of one relay process."""

    link: tuple[LinkSettings, ...]


class Link:
    """A listening port whose connections reach the target late."""

    def __init__(self, settings: LinkSettings) -> None:
        self.source = settings.source
        self.destination = settings.destination
        self.target = settings.target
        self.connections: set[_Connection] = set()
        # Seeded by name: two runs jitter alike.
        rng = Random(f"{self.source}>{self.destination}")  # noqa: S311 - no secret
        self.there = Wire(settings.delay_ms / 1e3, settings.jitter_ms / 1e3, rng)
        self.back = Wire(settings.back_ms / 1e3, settings.jitter_ms / 1e3, rng)

    def __repr__(self) -> str:
        return f"Link({self.source} > {self.destination}, {len(self.connections)} connections)"

    async def listen(self, host: str = "127.0.0.1") -> tuple[asyncio.Server, str]:
        """Start to accept; return the server and the URL that stands for the target."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(loop, self).client, host, 0)
        return server, f"http://{host}:{server.sockets[0].getsockname()[1]}"

    def set_delay(self, there_ms: float, back_ms: float) -> None:
        """Change the delay of what is sent from now on."""
        self.there.delay_s = there_ms / 1e3
        self.back.delay_s = back_ms / 1e3

    def set_jitter(self, jitter_ms: float) -> None:
        """Change how much is added at most to each delay."""
        self.there.jitter_s = self.back.jitter_s = jitter_ms / 1e3

    def stop(self) -> None:
        """Become a black hole in both directions."""
        self.there.stop()
        self.back.stop()

    def resume(self) -> None:
        """Carry again, first of all what was held."""
        self.there.resume()
        self.back.resume()
        for connection in self.connections:
            connection.arm()

    def report(self) -> dict[str, Any]:
        """Return what the link is set to and carries; the worst lateness is since the last report."""
        late_s = max(self.there.worst_late_s, self.back.worst_late_s)
        self.there.worst_late_s = self.back.worst_late_s = 0.0
        return {
            "source": self.source,
            "destination": self.destination,
            "delay_ms": self.there.delay_s * 1e3,
            "back_ms": self.back.delay_s * 1e3,
            "jitter_ms": self.there.jitter_s * 1e3,
            "blackhole": not self.there.passes,
            "connections": len(self.connections),
            "buffered_bytes": sum(connection.buffered_bytes for connection in self.connections),
            "carried_bytes": self.there.carried_bytes + self.back.carried_bytes,
            "worst_late_ms": late_s * 1e3,
        }


class _Connection:
    """A client's connection and the one to the target that it becomes, with a line each way between them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link) -> None:
        self._loop = loop
        self._link = link
        round_trip_s = link.there.delay_s + link.back.delay_s
        self._there = DelayLine(loop, link.there, self._arrived_there, opened_s=monotonic() + round_trip_s)
        self._back = DelayLine(loop, link.back, self._arrived_back)
        self.client = _End(self, outbound=self._there, inbound=self._back)
        self._server = _End(self, outbound=self._back, inbound=self._there)
        self._connecting: asyncio.Task[None] | None = None
        self._eofs_delivered = 0
        self._over = False

    @property
    def buffered_bytes(self) -> int:
        return self._there.buffered_bytes + self._back.buffered_bytes

    def arm(self) -> None:
        self._there.arm()
        self._back.arm()

    def made(self, end: _End) -> None:
        if self._over:
            reset(end.transport)
        elif end is self.client:
            self._link.connections.add(self)
            self._there.send_open()

    def ended(self, end: _End, mark: Mark) -> None:
        """One end has sent its last byte, or is gone."""
        if self._over:
            return
        # The target has not heard of this connection, and a client that tries again and again while the link
        # is a black hole would otherwise leave one behind each time.
        if end is self.client and self._connecting is None and not self._link.there.passes:
            self.finish()
        else:
            end.outbound.send(mark)
            if mark is Mark.RESET:
                end.inbound.drop()

    def finish(self) -> None:
        """Close what is open and forget the rest."""
        self._over = True
        for line in (self._there, self._back):
            line.drop()
        for end in (self.client, self._server):
            end.close()
        self._link.connections.discard(self)

    def _arrived_there(self, mark: Mark) -> None:
        if mark is Mark.OPEN:
            self._connecting = self._loop.create_task(self._connect())
        else:
            self._arrived_back(mark)

    def _arrived_back(self, mark: Mark) -> None:
        self._eofs_delivered += mark is Mark.EOF
        if mark is Mark.RESET or self._eofs_delivered == 2:
            self.finish()

    async def _connect(self) -> None:
        host, _, port = self._link.target.rpartition(":")
        try:
            await self._loop.create_connection(lambda: self._server, host, int(port))
        except OSError:
            self._back.send(Mark.RESET)


class _End(asyncio.Protocol):
    """One end of a connection: `outbound` carries what its peer sends, `inbound` what its peer gets."""

    transport: asyncio.Transport

    def __init__(self, connection: _Connection, *, outbound: DelayLine, inbound: DelayLine) -> None:
        self._connection = connection
        self.outbound = outbound
        self.inbound = inbound
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self._is_open = True
        self.outbound.take_source(self.transport)
        self.inbound.take_sink(self.transport)
        self._connection.made(self)

    def data_received(self, data: bytes) -> None:
        self.outbound.send(data)

    def eof_received(self) -> bool:
        self._connection.ended(self, Mark.EOF)
        return True  # keep the other direction open

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._is_open = False
        self._connection.ended(self, Mark.RESET)

    def pause_writing(self) -> None:
        self.inbound.hold()

    def resume_writing(self) -> None:
        self.inbound.release()

    def close(self) -> None:
        if self._is_open:
            self.transport.close()


async def run_relay(settings: RelaySettings, control: Path) -> None:
    """Serve all links until SIGTERM or SIGINT; say on stdout where each listens."""
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    links = [Link(link) for link in settings.link]
    servers = [await link.listen() for link in links]
    controller = await serve_control(control, links)
    for link, (_, url) in zip(links, servers, strict=True):
        sys.stdout.write(f"link {link.source} {link.destination} {url}\n")
    sys.stdout.write(f"control unix:{control}\n")
    sys.stdout.flush()
    await stopping.wait()
    for server in (controller, *(server for server, _ in servers)):
        server.close()
    for link in links:
        for connection in tuple(link.connections):
            connection.finish()


def _raise_open_files_limit() -> None:
    """Every stream holds two sockets here; the usual soft limit of 1024 is soon met."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Run `python -m dlbctl.fleet.delay_relay --config relay.toml --control relay.sock`."""
    import uvloop

    parser = argparse.ArgumentParser(prog="delay-relay", description="TCP links with WAN delays.")
    parser.add_argument("--config", type=Path, required=True, help="TOML with a [[link]] for each")
    parser.add_argument("--control", type=Path, required=True, help="unix socket to bind for commands")
    options = parser.parse_args()
    watch_lifeline()
    _raise_open_files_limit()
    settings = toml.decode(options.config.read_text(), RelaySettings, file=str(options.config))
    uvloop.run(run_relay(settings, options.control))


if __name__ == "__main__":
    main()
