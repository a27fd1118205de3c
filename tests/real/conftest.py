"""The engine, and the ways to reach it: straight, and through a root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .llama import MODEL, Llama, build_model, require_packages
from .root import Root


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the tiny GGUF model."""
    require_packages()
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def llama(tiny_model: Path) -> Iterator[Llama]:
    """A llama.cpp server that tests share, and so leave idle."""
    with Llama(tiny_model) as server:
        yield server


@pytest.fixture(scope="session")
def root(llama: Llama, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """A root in front of the shared engine."""
    with Root(tmp_path_factory.mktemp("root"), server=llama.url, model=MODEL) as process:
        yield process


@pytest.fixture(params=["direct", "root"])
def front(request: pytest.FixtureRequest, llama: Llama) -> str:
    """The URL that clients use. What holds `direct` shows that the engine and the test are right."""
    if request.param == "direct":
        return llama.url
    url: str = request.getfixturevalue("root").url
    return url
