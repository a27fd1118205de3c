"""The command line as plain data, read from the typer app.

typer brings its own copy of click or uses the one that is installed, and the two differ: nothing is imported from
either. A command is known by what it has; the types of its parameters are those of the function behind it.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

# What stands for a value of each type, where the parameter does not say itself.
STAND_INS: dict[Any, str] = {Path: "PATH", int: "N", float: "X"}

# How a help text tells the default itself, in a remark at its end.
_TOLD_DEFAULT = re.compile(r"\.?\s*[\[(]default: (?P<default>.*)[\])]\.?$")


class Parameter(NamedTuple):
    """One option or argument. names: how an option is written, the longest first; empty for an argument.

    off: names of a flag's opposite. value: the stand-in for its value, empty for a flag. facts: sentences on
    range, repetition, environment and default.
    """

    names: tuple[str, ...]
    off: tuple[str, ...]
    value: str
    help: str
    facts: tuple[str, ...]
    required: bool


class Command(NamedTuple):
    """One command. words: how it is called, without `dlbctl`. help: its paragraphs."""

    words: tuple[str, ...]
    help: tuple[str, ...]
    arguments: tuple[Parameter, ...]
    options: tuple[Parameter, ...]
    help_names: tuple[str, ...]
    commands: tuple[Command, ...]

    @property
    def called(self) -> str:
        """What is typed for it."""
        return " ".join(("dlbctl", *self.words))

    @property
    def brief(self) -> str:
        """Its help as half a line: up to the first mark of punctuation, its first letter small."""
        line = re.split(r"[.,:;](?:\s|$)", self.help[0])[0]
        return line[:1].lower() + line[1:]


def read(command: Any, words: tuple[str, ...] = ()) -> Command:
    """A click-like command and all those below it; hidden ones are left out."""
    types = _types(command)
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    below = getattr(command, "commands", {}).items()
    return Command(
        words,
        tuple(" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")),
        tuple(_parameter(p, types) for p in shown if p.param_type_name == "argument"),
        tuple(_parameter(p, types) for p in shown if p.param_type_name == "option"),
        tuple((command.context_settings or {}).get("help_option_names", ("--help",))),
        tuple(read(one, (*words, name)) for name, one in below if not one.hidden),
    )


def _types(command: Any) -> dict[str, Any]:
    """The type of each parameter of the function behind a command, the None of optional ones taken off."""
    if command.callback is None:
        return {}
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    return {name: _single(hint) for name, hint in hints.items()}


def _single(hint: Any) -> Any:
    """The type of one value: X of `X | None` and of `list[X]`."""
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    return _single(parts[0]) if parts else hint


def _parameter(given: Any, types: dict[str, Any]) -> Parameter:
    names = () if given.param_type_name == "argument" else tuple(sorted(given.opts, key=len, reverse=True))
    flag = bool(names) and given.is_flag
    value = "" if flag else given.metavar or _stand_in(given.name, types.get(given.name), argument=not names)
    if not names:
        value = value.removesuffix("]").removeprefix("[") + " ..." * (given.nargs == -1)
    text = _TOLD_DEFAULT.sub(".", given.help or "")
    return Parameter(names, tuple(given.secondary_opts), value, text, tuple(_facts(given)), bool(given.required))


def _stand_in(name: str, kind: Any, *, argument: bool) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(choice.value) for choice in kind)
    own = name.upper().replace("_", "-")
    return own if argument else STAND_INS.get(kind, own)


def _facts(given: Any) -> Iterable[str]:
    low, high = _bound(given, "min"), _bound(given, "max")
    if low is not None and high is not None:
        yield f"From {low:g} to {high:g}."
    elif low is not None:
        yield f"At least {low:g}."
    elif high is not None:
        yield f"At most {high:g}."
    if given.multiple:
        yield "May be given several times."
    if given.envvar:
        yield f"Without it, the environment variable `{given.envvar}` is read."
    if default := _default(given):
        yield f"Default: {default}."


def _bound(given: Any, which: str) -> float | None:
    bound: float | None = getattr(given, which, None)
    return getattr(getattr(given, "type", None), which, None) if bound is None else bound


def _default(given: Any) -> str:
    """The default in words, those of the help where it has some; empty where there is none."""
    if told := _TOLD_DEFAULT.search(given.help or ""):
        return told["default"]
    value = given.default
    if isinstance(value, bool):
        value = given.opts[0] if value else next(iter(given.secondary_opts), None)
    if isinstance(value, enum.Enum):
        value = value.value
    if value in (None, "", (), []) or callable(value) or given.show_default is False:
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
