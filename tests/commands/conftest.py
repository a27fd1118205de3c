"""Two roots over the same engines, as processes: what a user points `dlbctl inspect` and `dlbctl policy` at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.commands import Ended, Running, dlbctl, running, until_ready

MODEL, OTHER = "m", "org/модель"


class Routers(NamedTuple):
    """Admin addresses of two roots, and the first's URL for clients; OTHER is an endpoint of the first alone."""

    first: str
    second: str
    url: str

    @property
    def both(self) -> str:
        return f"{self.first},{self.second}"

    def run(self, *words: object, admin: str | None = None) -> Ended:
        return dlbctl(*words, environment={"DLBCTL_ADMIN": admin or self.first})


def root_file(folder: Path, name: str, engines: list[str], *endpoints: str) -> Path:
    """A root.toml with a cell `eu` of these engines; its admin socket is NAME.sock beside it."""
    servers = "".join(f'[[cell.server]]\nurl = "{url}"\n' for url in engines)
    named = "".join(f'[[endpoint]]\nname = "{endpoint}"\n' for endpoint in endpoints)
    path = folder / f"{name}.toml"
    path.write_text(
        f'[root]\nlisten = "127.0.0.1:0"\nadmin = "unix:{folder}/{name}.sock"\nreadiness_grace_s = 0.0\n'
        f'[[cell]]\nname = "eu"\n{servers}{named}'
    )
    return path


def started(root: Running) -> str:
    """Wait until a root routes; its URL for clients."""
    url = root.line("listening ")
    until_ready(url)
    return url


@pytest.fixture(scope="session")
def engines() -> Iterator[list[str]]:
    with running("engine", "--profile", "laptop", "--count", "2", "--model", MODEL) as process:
        yield [f"http://{process.line('http://')}" for _ in range(2)]


@pytest.fixture(scope="session")
def routers(engines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routers]:
    folder = tmp_path_factory.mktemp("routers")
    urls = []
    with ExitStack() as stack:
        for name, endpoints in (("first", (MODEL, OTHER)), ("second", (MODEL,))):
            root = stack.enter_context(running("root", "--config", root_file(folder, name, engines, *endpoints)))
            urls.append(started(root))
        yield Routers(f"unix:{folder}/first.sock", f"unix:{folder}/second.sock", urls[0])
