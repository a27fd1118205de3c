"""Reading a TOML file into msgspec types: errors name the file, the key and, for a typo, the nearest."""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import inspect

from dlbctl.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

T = TypeVar("T")

# msgspec's wording: "Object contains unknown field `x` - at `$.region[0]`".
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<place>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<key>[^`]+)`")


def decode_toml(path: Path, into: type[T]) -> T:
    """Read `path` as `into`; ConfigError on a file that cannot be read, parsed or accepted."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(tables, into, strict=True)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}", hint="Check the path.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", hint="Correct the syntax there.") from error
    except msgspec.ValidationError as error:
        raise _refused(path, str(error), into) from error


def nearest(word: str, words: Iterable[str]) -> str:
    """Return a hint: the word that was probably meant, or all that there are."""
    words = sorted(words)
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(words)}."


def _refused(path: Path, message: str, into: type[object]) -> ConfigError:
    found = _PLACE.search(message)
    place = found["place"] if found else ""
    unknown = _UNKNOWN.search(message)
    if unknown:
        where = f"{place}.{unknown['key']}" if place else unknown["key"]
        return ConfigError(f"{path}: {where}: unknown key", hint=nearest(unknown["key"], _keys(into, place)))
    problem = message[: found.start()] if found else message
    return ConfigError(
        f"{path}: {place or 'the file'}: {problem[:1].lower()}{problem[1:]}", hint="Correct it there."
    )


def _keys(into: type[object], place: str) -> list[str]:
    """Return the keys that the table at `place`, such as `region[0]`, may have."""
    here: inspect.Type = inspect.type_info(into)
    for step in re.findall(r"[^.\[\]]+|\[[^\]]*\]", place):
        here = _inside(here, step)
    return [field.encode_name for field in here.fields] if isinstance(here, inspect.StructType) else []


def _inside(outer: inspect.Type, step: str) -> inspect.Type:
    """Return the type one step of a place further in."""
    match outer:
        case inspect.StructType():
            return next(field.type for field in outer.fields if field.encode_name == step)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            return outer.item_type
        case inspect.DictType():
            return outer.value_type
        case inspect.UnionType():
            return next(kind for kind in outer.types if not isinstance(kind, inspect.NoneType))
        case _:
            return outer
