"""TOML text to validated settings; what is wrong is told by key path, with the nearest key that would be right.

Environment variables override values: `DLBCTL_ROOT__LISTEN` is `listen` of `[root]`; an entry of an array of
tables is named by its position or its `name`: `DLBCTL_CELL__0__NAME`, `DLBCTL_ENDPOINT__QWEN3_35B__POLICY`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints, runtime_checkable

import msgspec
import tomli

from dlbctl.core.errors import ConfigError
from dlbctl.core.names import did_you_mean, nearest

Settings = TypeVar("Settings")


@runtime_checkable
class _Checked(Protocol):
    def check(self, file: str) -> None:
        """Raise ConfigError for what types cannot say."""


ENVIRONMENT_PREFIX = "DLBCTL_"

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<key>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_ENUM = re.compile(r"Invalid enum value '(?P<word>.*)'", re.DOTALL)
_WRONG = re.compile(r"(?P<fault>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)


def decode(
    text: str,
    wanted: type[Settings],
    *,
    file: str,
    environment: Mapping[str, str] | None = None,
    beside: Collection[str] = (),
) -> Settings:
    """Decode a file's text into `wanted` (a msgspec Struct) and have it check itself where it has a `check`.

    beside: sections of other files that the same environment may override. ConfigError names the file, or the
    variable, and the key.
    """
    try:
        tree = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    overridden = _override_all(tree, wanted, environment or {}, beside)
    try:
        settings = msgspec.convert(tree, wanted, strict=True)
        if isinstance(settings, _Checked):
            settings.check(file)
    except msgspec.ValidationError as error:
        raise _blamed(_explain(str(error), wanted, file), file, overridden) from error
    except ConfigError as error:
        raise _blamed(error, file, overridden) from error
    return settings


def _override_all(
    tree: dict[str, Any], wanted: type[Any], environment: Mapping[str, str], beside: Collection[str]
) -> dict[str, str]:
    """Apply the variables that address this file; their names, by the key that each has set."""
    sections = get_type_hints(wanted)
    overridden = {}
    for name, value in environment.items():
        section, separator, _ = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        if not separator:
            _refuse_slip(name, sections)
        elif section in sections:
            if get_origin(sections[section]) is tuple:
                tree.setdefault(section, [])  # its entries can be overridden, not made
            overridden[_override(tree, name, value)] = name
        elif section not in beside:
            raise _no_section(name, section, {*sections, *beside})
    return overridden


def _refuse_slip(name: str, sections: Mapping[str, Any]) -> None:
    """Refuse one underscore where there should be two.

    Only for keys that there are: not every variable that begins like ours is ours. Kubernetes sets
    DLBCTL_ROOT_SERVICE_HOST for a service `dlbctl-root`.
    """
    words = name.removeprefix(ENVIRONMENT_PREFIX).lower()
    for section, kind in sections.items():
        key = words.removeprefix(f"{section}_")
        if key != words and key in getattr(kind, "__struct_encode_fields__", ()):
            meant = f"{ENVIRONMENT_PREFIX}{section}__{key}".upper()
            raise ConfigError(f"environment variable {name}: overrides nothing", hint=f"did you mean {meant}?")


def _no_section(name: str, section: str, sections: Collection[str]) -> ConfigError:
    near = nearest(section, sections)
    meant = name.upper().replace(section.upper(), near.upper(), 1) if near else ""
    return ConfigError(
        f"environment variable {name}: there is no section {section!r} to override",
        hint=f"did you mean {meant}?" if near else f"sections: {', '.join(sorted(sections))}",
    )


def _override(tree: dict[str, Any], name: str, value: str) -> str:
    """Apply one variable; the path of the key that it has set."""
    *steps, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
    place: Any = tree
    path = ""
    for step in steps:
        place, at = _descend(place, step, name)
        path += at
    if not isinstance(place, dict):
        raise ConfigError(f"environment variable {name}: there is no key {key!r} to override")
    place[key] = _value(value)
    return _dotted(path, key)


def _descend(place: Any, step: str, name: str) -> tuple[Any, str]:
    """What stands below a place, and how the way there is written."""
    if isinstance(place, dict):
        return place.setdefault(step, {}), f".{step}"
    for index, entry in enumerate(place if isinstance(place, list) else ()):
        called = str(entry.get("name", "")) if isinstance(entry, dict) else ""
        if step in {str(index), re.sub(r"[^a-z0-9]+", "_", called.lower())}:
            return entry, f"[{index}]"
    raise ConfigError(f"environment variable {name}: there is no entry {step!r} to override")


def _blamed(error: ConfigError, file: str, overridden: Mapping[str, str]) -> ConfigError:
    """The error, told of the variable that has set the key at fault, where one has: the file is not to blame."""
    told = error.message.removeprefix(f"{file}: ")
    for path, name in overridden.items():
        if re.match(rf"(unknown key )?{re.escape(path)}(?!\w)", told):
            return ConfigError(f"environment variable {name}: {told}", hint=error.hint)
    return error


def _value(text: str) -> Any:
    """A TOML value if the text is one, else the text itself: 5, true and ["a"] need no quotes in quotes."""
    try:
        return tomli.loads(f"value = {text}")["value"]
    except tomli.TOMLDecodeError:
        return text


def _explain(fault: str, wanted: type[Any], file: str) -> ConfigError:
    if found := _UNKNOWN.match(fault):
        path = found["path"] or ""
        known = _keys_at(wanted, path)
        hint = did_you_mean(found["key"], known, otherwise=f"known keys: {', '.join(known)}")
        return ConfigError(f"{file}: unknown key {_dotted(path, found['key'])}", hint=hint)
    if found := _MISSING.match(fault):
        return ConfigError(f"{file}: {_dotted(found['path'] or '', found['key'])} is missing")
    found = _WRONG.match(fault)
    assert found is not None
    path = found["path"] or ""
    told = found["fault"].replace(" | null", "")  # TOML has none
    hint = ""
    if word := _ENUM.fullmatch(told):
        allowed = _words_at(wanted, path)
        hint = did_you_mean(word["word"], allowed, otherwise=f"one of: {', '.join(allowed)}")
    return ConfigError(f"{file}: {_dotted(path, '')}: {told}", hint=hint)


def _dotted(path: str, key: str) -> str:
    return f"{path}.{key}".strip(".")


def _keys_at(wanted: Any, path: str) -> list[str]:
    """The keys known at a path like `.cell[0].server[...]`."""
    for step in re.findall(r"\.(\w+)", path):
        wanted = _struct_in(get_type_hints(wanted).get(step))
        if wanted is None:
            return []
    return list(getattr(wanted, "__struct_encode_fields__", ()))


def _words_at(wanted: Any, path: str) -> list[str]:
    """The words allowed at a path like `.endpoint[0].flow.rule`."""
    hint: Any = wanted
    for step in re.findall(r"\.(\w+)", path):
        hint = get_type_hints(_struct_in(hint) or object).get(step)
    return [str(word) for word in _literals(hint)]


def _literals(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for part in get_args(hint) for word in _literals(part)]


def _struct_in(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next((found for part in get_args(hint) if (found := _struct_in(part)) is not None), None)
