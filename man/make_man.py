"""Writes the man pages from the code, or says which of those written before differ from it.

    python man/make_man.py [--check] [DIR]      DIR: this file's folder when left out

The pages carry the version and no date: they change when the program does, and only then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from manpages import commands, interface, roff
from manpages.configuration import configuration_page

from dlbctl import __version__, cli


def pages() -> dict[str, str]:
    """The text of every page, by file name."""
    app = interface.read(typer.main.get_command(cli.app))
    overview = commands.overview_page(app, __version__)
    verbs = (commands.verb_page(command, __version__) for command in app.commands)
    return {page.file: str(page) for page in (overview, *verbs, configuration_page(__version__))}


def leftovers(folder: Path) -> Iterator[Path]:
    """Pages in the folder that were written here and are of no command any more."""
    known = pages()
    for path in sorted(folder.glob("dlbctl*.[1-8]")):
        if path.name not in known and path.read_text(encoding="utf-8").startswith(roff.MARK):
            yield path


def write(folder: Path) -> None:
    """Write every page, and remove those that no longer are."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in pages().items():
        (folder / file).write_text(text, encoding="utf-8")
    for path in leftovers(folder):
        path.unlink()


def drift(folder: Path) -> list[str]:
    """What is wrong with the pages in a folder, a line each."""
    faults = [f"{path}: describes a command that there is not" for path in leftovers(folder)]
    for file, text in pages().items():
        path = folder / file
        if not path.is_file():
            faults.append(f"{path}: is missing")
        elif path.read_text(encoding="utf-8") != text:
            faults.append(f"{path}: differs from the code")
    return faults


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Write dlbctl's man pages from its code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the pages differ")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, metavar="DIR")
    given = parser.parse_args()
    if not given.check:
        write(given.folder)
        return 0
    faults = drift(given.folder)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    if faults:
        sys.stderr.write("write them anew: make man\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
