"""Changing a running delay relay: one command a line over a unix socket, one JSON line back.

    links                     what every link is set to and carries
    delay FROM TO MS [MS]     one way there, and back where it differs
    jitter FROM TO MS         added at most to each delay
    blackhole FROM TO on|off

FROM and TO are region names or `*`. From a shell:
    python -m dlbctl.fleet.relay_control relay.sock blackhole '*' ap-seoul on
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from dlbctl.core.errors import DlbctlError, UnreachableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dlbctl.fleet.delay_relay import Link

_USAGE = "links | delay FROM TO MS [MS] | jitter FROM TO MS | blackhole FROM TO on|off"


async def serve_control(path: Path, links: Sequence[Link]) -> asyncio.Server:
    """Answer commands about `links` on a unix socket that only this user can open."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(msgspec.json.encode(_answer(links, line.decode(errors="replace"))) + b"\n")
            await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(answer, str(path))


def send_command(path: Path | str, command: str, *, timeout_s: float = 5.0) -> Any:
    """Send one command to the relay whose control socket is `path`; return what it answers.

    UsageError: the relay does not know the command or the link. UnreachableError: nothing answers there.
    """
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(command.encode() + b"\n")
            with sock.makefile("rb") as lines:
                reply = msgspec.json.decode(lines.readline())
    except (OSError, msgspec.DecodeError) as error:
        raise UnreachableError(f"{path}: no delay relay answers: {error}", hint="Is the fleet running?") from error
    if isinstance(reply, dict) and "error" in reply:
        raise UsageError(reply["error"], hint=_USAGE)
    return reply


def _answer(links: Sequence[Link], line: str) -> Any:
    try:
        return [link.report() for link in _obey(links, line.split())]
    except (ValueError, UsageError) as error:
        return {"error": str(error)}


def _obey(links: Sequence[Link], words: list[str]) -> Sequence[Link]:
    match words:
        case ["links"]:
            return links
        case ["delay", source, destination, there_ms]:
            return _each(links, source, destination, _delay(there_ms, there_ms))
        case ["delay", source, destination, there_ms, back_ms]:
            return _each(links, source, destination, _delay(there_ms, back_ms))
        case ["jitter", source, destination, jitter_ms]:
            jitter = _milliseconds(jitter_ms)
            return _each(links, source, destination, lambda link: link.set_jitter(jitter))
        case ["blackhole", source, destination, "on"]:
            return _each(links, source, destination, lambda link: link.stop())
        case ["blackhole", source, destination, "off"]:
            return _each(links, source, destination, lambda link: link.resume())
        case _:
            raise UsageError(f"not a command of the delay relay: {' '.join(words)!r}")


def _each(links: Sequence[Link], source: str, destination: str, change: Callable[[Link], None]) -> list[Link]:
    meant = [link for link in links if source in ("*", link.source) and destination in ("*", link.destination)]
    if not meant:
        raise UsageError(f"no link leads from {source!r} to {destination!r}")
    for link in meant:
        change(link)
    return meant


def _delay(there: str, back: str) -> Callable[[Link], None]:
    there_ms, back_ms = _milliseconds(there), _milliseconds(back)
    return lambda link: link.set_delay(there_ms, back_ms)


def _milliseconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 60_000:
        raise ValueError(f"{text} is not between 0 and 60000 ms")
    return value


def main() -> None:
    """Send the command line's words to a relay and print its answer."""
    if len(sys.argv) < 3:
        sys.exit(f"usage: relay_control SOCKET {_USAGE}")
    try:
        reply = send_command(sys.argv[1], " ".join(sys.argv[2:]))
    except DlbctlError as error:
        sys.exit(f"{error}")
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(reply)).decode() + "\n")


if __name__ == "__main__":
    main()
