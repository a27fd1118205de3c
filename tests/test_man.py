"""The man pages are those the code gives, say everything, and are pages that man can show."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from dlbctl import cli
from dlbctl.core import errors
from dlbctl.core.policy import COSTS, MECHANISMS
from dlbctl.core.settings import EndpointSettings, Limits, Timeouts
from dlbctl.fleet.settings import FleetSettings, Override, Region, load_fleet
from dlbctl.router import config, sections
from dlbctl.router.limits import HttpLimits

from .package import FOLDER

TREE = Path(__file__).parent.parent
MAN = TREE / "man"
SECTIONS = [sections.RootSection, sections.LeafSection, sections.CellSection, sections.ServerSection]
SECTIONS += [sections.AccessLogSection]
SECTIONS += [EndpointSettings, Limits, Timeouts, HttpLimits, config.RootFile, config.LeafFile]
SECTIONS += [FleetSettings, Region, Override]
# Set by `up` for the processes it starts; nobody else sets it.
INTERNAL_VARIABLES = {"DLBCTL_LIFELINE"}
# Pages carry a version and no date: a date would change when nothing else does.
NO_DATE = 'missing date, using "": TH'

needs_mandoc = pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")


def make_man(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MAN / "make_man.py"), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(FOLDER)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Freshly written pages, in a folder of their own."""
    folder = tmp_path_factory.mktemp("man")
    assert make_man(folder).returncode == 0
    return folder


def plain(page: Path) -> str:
    """A page's words in one line, without what sets them in bold."""
    text = re.sub(r"\\f[BIR]", "", page.read_text(encoding="utf-8"))
    for escape, character in {r"\-": "-", r"\(aq": "'", r"\(dq": '"', r"\(ga": "`", r"\(ti": "~", r"\&": ""}.items():
        text = text.replace(escape, character)
    return " ".join(text.split())


def entries(page: Path) -> set[str]:
    """What the lists of a page are about: options, arguments, keys, variables."""
    tags = re.findall(r"^\.TP\n(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"\\f[BIR]", "", part).replace(r"\-", "-") for tag in tags for part in re.split(r", | (?=\\fI)", tag)
    }


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below one, with the words that call it."""
    for name, one in getattr(command, "commands", {}).items():
        yield (*words, name), one
        yield from commands(one, (*words, name))


def app() -> Any:
    return typer.main.get_command(cli.app)


def load(monkeypatch: pytest.MonkeyPatch, module: str) -> Any:
    """A module of the generator."""
    monkeypatch.syspath_prepend(MAN)
    return importlib.import_module(f"manpages.{module}")


# -- drift -------------------------------------------------------------------------------------------------


def test_the_pages_of_the_tree_are_those_the_code_gives() -> None:
    checked = make_man("--check", MAN)
    assert checked.returncode == 0, checked.stderr


def test_check_names_each_page_that_differs_is_missing_or_is_of_no_command(pages: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pages, tmp_path / "man"))
    edited, removed, left_over = folder / "dlbctl-root.1", folder / "dlbctl.toml.5", folder / "dlbctl-gone.1"
    left_over.write_text(edited.read_text())
    edited.write_text(edited.read_text() + "More.\n")
    removed.unlink()
    foreign = folder / "dlbctl-by-hand.1"
    foreign.write_text(".TH BY-HAND 1\n")

    checked = make_man("--check", folder)

    assert checked.returncode == 1
    assert f"{edited}: differs" in checked.stderr
    assert f"{removed}: is missing" in checked.stderr
    assert f"{left_over}: describes a command that there is not" in checked.stderr
    assert checked.stderr.count(str(folder)) == 3

    assert make_man(folder).returncode == 0
    assert make_man("--check", folder).returncode == 0
    assert foreign.exists()


# -- completeness ------------------------------------------------------------------------------------------


def test_every_command_has_its_place_with_every_option_and_argument(pages: Path) -> None:
    overview = plain(pages / "dlbctl.1")
    for words, command in commands(app()):
        page, listed = plain(pages / f"dlbctl-{words[0]}.1"), entries(pages / f"dlbctl-{words[0]}.1")
        assert f"dlbctl {' '.join(words)}" in page
        assert " ".join(command.help.split("\n\n")[0].split()) in page
        assert f"dlbctl-{words[0]}(1)" in overview
        for parameter in command.params:
            names = parameter.opts + parameter.secondary_opts
            if parameter.param_type_name == "argument":
                names = [(parameter.metavar or parameter.name.upper()).strip("[]")]
            assert set(names) <= listed, (words, parameter.name)


def test_every_key_of_the_configuration_is_there_and_says_what_it_is(pages: Path) -> None:
    page = plain(pages / "dlbctl.toml.5")
    for section in SECTIONS:
        described = msgspec.json.schema(section)["$defs"][section.__name__]["properties"]
        for key in section.__struct_fields__:
            description = described[key].get("description", "")
            assert description, f"{section.__name__}.{key} has no description"
            assert f" {key} (" in page or f"[{key}]" in page or f".{key}]" in page, (section, key)
            assert " ".join(description.replace("`", "").split()) in page.replace(" .PP ", " "), (section, key)


def test_keys_that_have_to_be_there_say_so_and_the_others_say_their_default(pages: Path) -> None:
    page = plain(pages / "dlbctl.toml.5")
    assert "The cell that this leaf serves. Required." in page
    assert 'Where clients connect, host:port. Default: "127.0.0.1:8080".' in page
    assert "Until a connection to the target stands. Default: 2.0." in page


def test_options_say_their_default_and_range_after_what_they_do(pages: Path) -> None:
    assert "Configuration file. Default: ./root.toml, then /etc/dlbctl/root.toml." in plain(pages / "dlbctl-root.1")
    assert "Where to send; repeat it, or use commas, to spread sessions by weight. " in plain(pages / "dlbctl-replay.1")
    assert "Engines in this process, one port each. At least 1. Default: 1." in plain(pages / "dlbctl-engine.1")


def test_every_mechanism_and_cost_is_listed_with_its_summary(pages: Path) -> None:
    page = plain(pages / "dlbctl.toml.5")
    for registry in (MECHANISMS, COSTS):
        for name in registry.names():
            assert f".TP {name} " in page
            assert registry.summary(name) in page


def test_exit_codes_are_those_of_the_errors(pages: Path) -> None:
    known = {one.exit_code for one in vars(errors).values() if isinstance(one, type) and hasattr(one, "exit_code")}
    table = plain(pages / "dlbctl.1").partition('.SH "EXIT STATUS"')[2].partition(".SH")[0]
    assert {int(code) for code in re.findall(r"\.TP (\d+) ", table)} == known | {0}


def test_every_environment_variable_the_program_reads_is_told_of(pages: Path) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (TREE / "dlbctl").rglob("*.py"))
    read = set(re.findall(r"""["'](DLBCTL_[A-Z_]+[A-Z])["']""", sources)) - INTERNAL_VARIABLES
    assert read
    assert read - entries(pages / "dlbctl.1") == set()


# -- examples ----------------------------------------------------------------------------------------------


def test_the_configuration_files_shown_are_valid() -> None:
    assert load_fleet(TREE / "examples" / "configs" / "fleet-laptop.toml").region
    assert config.load(MAN / "manpages" / "root.toml", config.RootFile, {}).cell
    assert config.load(MAN / "manpages" / "leaf.toml", config.LeafFile, {}).server


def test_the_command_lines_shown_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(commands(app()))
    examples = load(monkeypatch, "words").EXAMPLES
    lines = "\n".join(line for of_verb in examples.values() for line in of_verb.values()).replace("\\\n", " ")
    shown = [match.split() for match in re.findall(r"^(?:[A-Z_]+=\S+ )?dlbctl ([^&\n]*)", lines, re.MULTILINE)]
    assert len(shown) > len(examples)
    for words in shown:
        command = max((key for key in known if tuple(words[: len(key)]) == key), key=len)
        rest = shlex.split(" ".join(words[len(command) :]))
        known[command].make_context(command[-1], rest)  # a fault of usage raises


def test_every_verb_has_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = load(monkeypatch, "words").EXAMPLES
    missing = {words[0] for words, _ in commands(app())} - set(examples)
    assert not missing, "add some to EXAMPLES in man/manpages/words.py"


# -- form --------------------------------------------------------------------------------------------------


@needs_mandoc
def test_mandoc_finds_no_fault(pages: Path) -> None:
    found = subprocess.run(
        ["mandoc", "-T", "lint", *sorted(map(str, pages.iterdir()))], capture_output=True, text=True, check=False
    )
    assert [line for line in found.stdout.splitlines() if NO_DATE not in line] == []


@needs_mandoc
def test_pages_fit_a_terminal_except_for_lines_that_must_not_be_broken(pages: Path) -> None:
    for page in pages.iterdir():
        shown = rendered(page.read_text(encoding="utf-8"))
        text = re.sub(r"(?ms)^EXAMPLES$.*?^(?=[A-Z])", "", shown)
        assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_warns_of_nothing_and_splits_no_name(pages: Path) -> None:
    for page in pages.iterdir():
        command = ["groff", "-man", "-ww", "-K", "utf8", "-T", "utf8", str(page)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        assert shown.stderr == ""
        joined = re.sub("[-\N{HYPHEN}]\n *", "", shown.stdout)
        assert joined.count("dlbctl") == shown.stdout.count("dlbctl")


@needs_mandoc
@pytest.mark.parametrize(
    "text",
    [
        ".SH is no heading here, and 'so' neither",
        "'quoted' at the start",
        r"a back\slash, a \fBfont\fR, a tilde ~, a caret ^",
        "an en-dash-like-word and --option=value and -1",
        'double "quotes" and `code with "quotes" and -dashes`',
        "λ and μ, τ",
        "One sentence. Another one! `.code` first. 'Quote' first? .dot",
    ],
)
def test_any_text_comes_out_as_it_went_in(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    roff = load(monkeypatch, "roff")
    page = roff.Page("x", 1, "y", "1")
    page.heading("DESCRIPTION")
    page.text(text)
    page.item(roff.bold(text.replace("`", "")), text)
    page.code(text)
    shown = " ".join(rendered(str(page)).split())
    # A backtick is shown where all is code; elsewhere it sets its text in bold.
    bare = text.replace("`", "")
    assert (shown.count(bare), shown.count(text)) == ((4, 4) if text == bare else (3, 1))


def rendered(page: str) -> str:
    """What a terminal shows of a page, without bold and underlining."""
    command = ["mandoc", "-K", "utf-8", "-T", "utf8", "-O", "width=80"]
    shown = subprocess.run(command, input=page, capture_output=True, text=True, check=True)
    return re.sub(".\x08", "", shown.stdout)
