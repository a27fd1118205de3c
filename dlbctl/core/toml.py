"""TOML text to validated settings; what is wrong is told by key path, with the nearest key that would be right.

Environment variables override values: `DLBCTL_ROOT__LISTEN` is `listen` of `[root]`; an entry of an array of
tables is named by its position or its `name`: `DLBCTL_CELL__0__NAME`, `DLBCTL_ENDPOINT__QWEN3_35B__POLICY`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import tomli

from dlbctl.core.errors import ConfigError

Settings = TypeVar("Settings")

ENVIRONMENT_PREFIX = "DLBCTL_"

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<key>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_WRONG = re.compile(r"(?P<fault>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)


def decode(text: str, wanted: type[Settings], *, file: str, environment: Mapping[str, str] | None = None) -> Settings:
    """Decode a file's text into `wanted` (a msgspec Struct). ConfigError names the file and the key."""
    try:
        tree = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    sections = tuple(get_type_hints(wanted))
    for name, value in (environment or {}).items():
        _override(tree, sections, name, value)
    try:
        return msgspec.convert(tree, wanted, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error), wanted, file) from error


def _override(tree: dict[str, Any], sections: tuple[str, ...], name: str, value: str) -> None:
    """Apply one environment variable when it addresses a section of this file."""
    path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
    if not name.startswith(ENVIRONMENT_PREFIX) or len(path) < 2 or path[0] not in sections:
        return
    place: Any = tree
    for step in path[:-1]:
        place = _descend(place, step, name)
    if not isinstance(place, dict):
        raise ConfigError(f"environment variable {name}: there is no key {path[-1]!r} to override")
    place[path[-1]] = _value(value)


def _descend(place: Any, step: str, name: str) -> Any:
    if isinstance(place, dict):
        return place.setdefault(step, {})
    for index, entry in enumerate(place if isinstance(place, list) else ()):
        called = str(entry.get("name", "")) if isinstance(entry, dict) else ""
        if step in {str(index), re.sub(r"[^a-z0-9]+", "_", called.lower())}:
            return entry
    raise ConfigError(f"environment variable {name}: there is no entry {step!r} to override")


def _value(text: str) -> Any:
    """A TOML value if the text is one, else the text itself: 5, true and ["a"] need no quotes in quotes."""
    try:
        return tomli.loads(f"value = {text}")["value"]
    except tomli.TOMLDecodeError:
        return text


def _explain(fault: str, wanted: type[Any], file: str) -> ConfigError:
    if found := _UNKNOWN.match(fault):
        path = found["path"] or ""
        near = difflib.get_close_matches(found["key"], _keys_at(wanted, path), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(_keys_at(wanted, path))}"
        return ConfigError(f"{file}: unknown key {_dotted(path, found['key'])}", hint=hint)
    if found := _MISSING.match(fault):
        return ConfigError(f"{file}: {_dotted(found['path'] or '', found['key'])} is missing")
    found = _WRONG.match(fault)
    assert found is not None
    return ConfigError(f"{file}: {_dotted(found['path'] or '', '')}: {found['fault']}")


def _dotted(path: str, key: str) -> str:
    return f"{path}.{key}".strip(".")


def _keys_at(wanted: Any, path: str) -> list[str]:
    """The keys known at a path like `.cell[0].server[...]`."""
    for step in re.findall(r"\.(\w+)", path):
        wanted = _struct_in(get_type_hints(wanted).get(step))
        if wanted is None:
            return []
    return list(getattr(wanted, "__struct_encode_fields__", ()))


def _struct_in(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next((found for part in get_args(hint) if (found := _struct_in(part)) is not None), None)
