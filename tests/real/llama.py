"""A real engine for tests: llama.cpp's server with the tiny model, started, asked, killed, started again.

What it does and a router has to live with: it promises keep-alive and closes the connection after every
stream; its /health is 503 while the model loads; a client that leaves a stream frees the slot within a tenth
of a second, but one that leaves an answer that is not streamed does not: the engine works on to its end.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Self

import httpx
import pytest

from .processes import Spawned, eventually

MODEL = "tiny"
INSTALL = "pip install -e .[real]"
_PACKAGES = ("xllamacpp", "gguf", "openai")
_SERVE = Path(__file__).with_name("serve_llama.py")


def require_packages() -> None:
    """Skip the calling test where the engine or its client is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: {INSTALL}")


def build_model(folder: Path) -> Path:
    """Write the tiny model into `folder`; its path."""
    from .tiny_gguf import write_tiny_gguf

    path = folder / "tiny.gguf"
    write_tiny_gguf(path)
    return path


class Llama:
    """One llama.cpp server process that serves MODEL. A context manager: leaving it ends the process."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._port = 0  # free at the first start, the same from then on
        self._process: Spawned | None = None

    def __repr__(self) -> str:
        return f"<Llama {self.url}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The base URL, without `/v1`."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the process and wait until the model is loaded; a second start takes the same port."""
        command = [sys.executable, str(_SERVE), str(self._model), MODEL, str(self._port)]
        self._process = Spawned(command)
        self._port = int(self._process.word_after("listening").rsplit(":", 1)[1])
        eventually(self._is_healthy, within_s=30)  # it answers 503 while it loads

    def kill(self) -> None:
        """SIGKILL: the sockets close under whoever is reading."""
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        """End the process if it runs."""
        if self._process is not None:
            self._process.stop()

    def requests_processing(self) -> int:
        """How many slots work now."""
        metrics = httpx.get(f"{self.url}/metrics").raise_for_status().text
        line = next(line for line in metrics.splitlines() if line.startswith("llamacpp:requests_processing "))
        return int(float(line.split()[1]))

    def _is_healthy(self) -> bool:
        return httpx.get(f"{self.url}/health").status_code == 200
