"""The process that works programs out for a router: scipy stays out of the router, and so does the time it takes.

One line of JSON in, a program; one out, its solution or why there is none. It ends with its input, that is with the
router, however that ends: nobody else holds the other end.
"""

from __future__ import annotations

import os
import sys
import threading
from queue import SimpleQueue

import msgspec
from msgspec import Struct

from dlbctl.core.programs import Program, Solution, UnsolvedError, solve


class Unsolved(Struct, frozen=True, tag="unsolved"):
    """A program that has no solution, and why."""

    why: str


def main() -> None:
    """Solve what comes in until nobody asks any more."""
    decoder = msgspec.json.Decoder(Program)
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        answer: Solution | Unsolved
        try:
            answer = solve(decoder.decode(lines.get()))
        except UnsolvedError as error:
            answer = Unsolved(error.message)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def _read(lines: SimpleQueue[bytes]) -> None:
    """A thread of its own sees the end of the router in the middle of a solution too."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)
