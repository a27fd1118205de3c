"""Costs and mechanisms are found by file name; a wrong name is answered with the right ones."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlbctl.core.errors import ConfigError
from dlbctl.core.policy import Policy
from dlbctl.core.registry import Registry
from tests.core.views import POLICIES


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry over a package of two files."""
    package = tmp_path / "policies_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text('"""A package."""\n')
    (package / "plain.py").write_text('"""The plain one. More."""\nUNIT = "s"\n')
    (package / "of_two_words.py").write_text('"""\nAnother.\n\nMore.\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry(importlib.import_module("policies_of_a_test"), "cost")
    for name in [name for name in sys.modules if name.startswith("policies_of_a_test")]:
        del sys.modules[name]


def test_a_file_in_the_package_is_all_it_takes(registry: Registry, tmp_path: Path) -> None:
    assert registry.names() == ["of-two-words", "plain"]
    (tmp_path / "policies_of_a_test" / "newest.py").write_text('"""New."""\n')
    importlib.invalidate_caches()
    assert registry.names() == ["newest", "of-two-words", "plain"]
    assert registry.load("newest", where="test").__name__ == "policies_of_a_test.newest"
    assert repr(registry) == "<Registry cost: newest, of-two-words, plain>"


def test_names_have_dashes_and_summaries_are_first_lines(registry: Registry) -> None:
    assert registry.load("plain", where="test").UNIT == "s"
    assert registry.summary("plain") == "The plain one. More."
    assert registry.summary("of-two-words") == "Another."


@pytest.mark.parametrize(("name", "hint"), [("plane", "did you mean plain?"), ("fast", "one of: of-two-words, plain")])
def test_an_unknown_name_is_answered_with_the_nearest_or_all_that_there_are(
    registry: Registry, name: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.load(name, where="leaf.toml: endpoint[0].policy")
    assert caught.value.message == f"leaf.toml: endpoint[0].policy: there is no cost {name!r}"
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("discrete", "is not a policy"),
        ("", "is not a policy"),
        ("discreet/rif", "no mechanism 'discreet'"),
        ("discrete/latencies", "no cost 'latencies'"),
        ("discrete/", "no cost ''"),
        ("/rif", "no mechanism ''"),
        ("discrete/rif/more", "no cost 'rif/more'"),
        ("../discrete/rif", "no mechanism '..'"),
    ],
)
def test_a_policy_that_is_none_is_refused_with_a_hint(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Policy.parse(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", POLICIES)
def test_a_policy_is_written_as_it_is_read(text: str) -> None:
    assert str(Policy.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("discrete", "discrete/latency"),
        ("nothing", "weighted-random"),
        ("discret/rif", "did you mean discrete?"),
        ("discrete/latenci", "did you mean latency?"),
        ("weighted_randm", "did you mean weighted-random?"),
        ("flow-pi:latency", "did you mean flow-pi/latency"),
        ("weighted-random/rif", "write weighted-random alone"),
    ],
)
def test_what_is_missing_of_a_policy_or_too_much_is_in_the_hint(text: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy.parse(text, where="root.toml: endpoint[0].policy")
    assert caught.value.message.startswith("root.toml: endpoint[0].policy: ")
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("now", "mechanism", "cost", "then"),
    [
        ("discrete/rif", "power-of-d", "", "power-of-d/rif"),
        ("discrete/rif", "", "latency", "discrete/latency"),
        ("discrete/rif", "power-of-d", "work", "power-of-d/work"),
        ("discrete/rif", "weighted-random", "", "weighted-random"),
        ("weighted-random", "discrete", "rif", "discrete/rif"),
    ],
)
def test_half_of_a_policy_is_switched_and_the_other_kept(now: str, mechanism: str, cost: str, then: str) -> None:
    assert str(Policy.parse(now).switched(mechanism, cost)) == then


@pytest.mark.parametrize(
    ("mechanism", "cost", "words"),
    [
        ("discrete", "", "needs a cost"),
        ("", "rif", "takes no cost"),
        ("weighted-random", "rif", "takes no cost"),
        ("nope", "", "no mechanism 'nope'"),
    ],
)
def test_half_of_a_policy_that_does_not_go_with_the_other_is_refused(mechanism: str, cost: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Policy.parse("weighted-random").switched(mechanism, cost)


def test_listing_names_imports_none_of_them() -> None:
    """So the command line can offer its choices without paying for numpy."""
    code = (
        "import sys\n"
        "from dlbctl.core.policy import COSTS, MECHANISMS\n"
        "assert COSTS.names() and MECHANISMS.names()\n"
        "print([m for m in sys.modules if m.startswith(('dlbctl.core.costs.', 'dlbctl.core.mechanisms.', 'numpy'))])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
