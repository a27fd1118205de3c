"""The little of man(7) that the pages use. Text comes in plain, code in `backticks`; roff goes out.

man(7) and not mdoc(7): a page here carries a version and no date, and groff's mdoc then prints "Epoch".
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

WIDTH = 78
MARK = '.\\" Written by man/make_man.py from the code, which is the place to change it.'
# No hyphenation, which would split names that are to be typed, and no stretched lines. HY is what groff's
# macros turn hyphenation on again with after an example.
PLAIN = (".nr HY 0", ".nh", ".ad l")

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`(\[])")
# What is set in bold inside a text: `code`, page(1) and --option.
_CODE = re.compile(r"(`[^`]+`|\bdlbctl[\w.-]*\(\d\)|(?<![\w-])--[a-z][\w-]*)")
_ESCAPES = str.maketrans({"\\": r"\e", "^": r"\(ha", "~": r"\(ti"})
_CODE_ESCAPES = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}
)


def bold(text: str) -> str:
    """Text to be typed as it stands."""
    return rf"\fB{text.translate(_CODE_ESCAPES)}\fR"


def italic(text: str) -> str:
    """Text to be replaced by a value."""
    return rf"\fI{text.translate(_CODE_ESCAPES)}\fR"


def inline(text: str) -> str:
    """A text on one line, its code in bold."""
    return "".join(_piece(piece) for piece in _CODE.split(text))


def _piece(piece: str) -> str:
    if not _CODE.fullmatch(piece):
        return piece.translate(_ESCAPES)
    if piece.endswith(")"):
        name, _, section = piece.partition("(")
        return f"{bold(name)}({section}"
    return bold(piece.strip("`"))


class Page:
    """One page, written from top to bottom."""

    def __init__(self, name: str, section: int, summary: str, version: str) -> None:
        self.file = f"{name}.{section}"
        self._lines = [MARK, f'.TH "{name.upper()}" "{section}" "" "dlbctl {version}" "dlbctl manual"', *PLAIN]
        self._fresh = True  # right below a heading, where a paragraph needs no macro
        self.heading("NAME")
        dashed = name.replace("-", r"\-")
        self._lines.append(rf"{dashed} \- {inline(summary)}")

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._head("SH", text)

    def subheading(self, text: str) -> None:
        """Begin a part of a section."""
        self._head("SS", text)

    def text(self, text: str) -> None:
        """Add one or more paragraphs, separated by blank lines."""
        for paragraph in _paragraphs(text):
            if not self._fresh:
                self._lines.append(".PP")
            self._add(_filled(paragraph))

    def item(self, tag: str, text: str) -> None:
        """Add an entry of a list. tag: roff."""
        self._add([".TP", _guarded(tag)])
        for number, paragraph in enumerate(_paragraphs(text)):
            self._add([".IP"] * bool(number) + _filled(paragraph))

    def code(self, text: str) -> None:
        """Add lines that keep their form, set in a little."""
        lines = (_guarded(line.translate(_CODE_ESCAPES)) for line in text.rstrip("\n").split("\n"))
        self._add([*[".PP"] * (not self._fresh), ".RS 4", ".EX", *lines, ".EE", ".RE"])

    def synopsis(self, command: str, options: Iterable[tuple[str, str]], words: Iterable[str]) -> None:
        """Add how a command is called. options: name and value (empty for a flag); words: the rest, roff."""
        self._add([f'.SY "{command.translate(_CODE_ESCAPES)}"'])
        for option in options:
            self._add([".OP " + " ".join(f'"{part.translate(_CODE_ESCAPES)}"' for part in option if part)])
        self._add([*words, ".YS"])

    def _head(self, macro: str, text: str) -> None:
        self._lines.append(f'.{macro} "{text.translate(_CODE_ESCAPES)}"')
        self._fresh = True

    def _add(self, lines: Iterable[str]) -> None:
        self._lines += lines
        self._fresh = False


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def _filled(paragraph: str) -> list[str]:
    """Each sentence on lines of its own: a change shows as what it is, and roff knows where sentences end."""
    lines = []
    for sentence in _SENTENCE_END.split(paragraph):
        lines += textwrap.wrap(inline(sentence), WIDTH, break_long_words=False, break_on_hyphens=False)
    return [_guarded(line) for line in lines]


def _guarded(line: str) -> str:
    """A line that roff cannot take for a request; an empty one has to be kept."""
    return rf"\&{line}" if line.startswith((".", "'")) or not line else line
