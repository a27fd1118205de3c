"""Stand-ins for `dlbctl engine`, `leaf` and `root`: real processes that keep the same contract, started in no time.

An engine's profile says how it misbehaves: `fails`, `silent`, `stubborn` (ignores SIGTERM), `nested` (starts a
process of its own that ignores the end of its parent).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dlbctl.fleet.lifeline import watch_lifeline


class Handler(BaseHTTPRequestHandler):
    """Answers every GET with 200, unless a leaf behind it does not answer."""

    leaves: tuple[str, ...] = ()

    def do_GET(self) -> None:
        try:
            for leaf in self.leaves:
                urllib.request.urlopen(f"{leaf}/readyz", timeout=5).close()
            self.send_response(200)
        except OSError:
            self.send_response(503)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def engine() -> None:
    profile = option("--profile")
    if profile == "fails":
        sys.exit("engine: no GPU was found")
    if profile == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if profile == "nested":
        nested = subprocess.Popen([sys.executable, __file__, "nested"], start_new_session=True)
        sys.stderr.write(f"nested {nested.pid}\n")
        sys.stderr.flush()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(int(option("--count")))]
    if profile != "silent":
        for server in servers:
            print(f"http://127.0.0.1:{server.server_port}", flush=True)
    servers[0].serve_forever()


def leaf(config: dict[str, Any]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"peers http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def root(config: dict[str, Any]) -> None:
    port = int(config["root"]["listen"].rpartition(":")[2])
    Handler.leaves = tuple(leaf for cell in config["cell"] for leaf in cell["leaves"])
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"listening http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def main() -> None:
    watch_lifeline(grace_s=0.5)
    match sys.argv[1]:
        case "engine":
            engine()
        case "leaf":
            leaf(tomllib.loads(Path(option("--config")).read_text()))
        case "root":
            root(tomllib.loads(Path(option("--config")).read_text()))
        case _:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pause()


if __name__ == "__main__":
    main()
