"""What differs between two readings of a configuration file, in words for its operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec


def differences(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, str]:
    """What has changed, by key path, from two structures of one type; entries of arrays go by name or address."""
    return dict(_compare("", msgspec.to_builtins(old), msgspec.to_builtins(new)))


def _compare(path: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _compare(f"{path}.{key}".lstrip("."), old.get(key), new.get(key))
    elif _tables(old) and _tables(new):
        yield from _compare_entries(path, _by_name(old), _by_name(new))
    elif old != new:
        yield path, f"{_shown(old)} -> {_shown(new)}"


def _compare_entries(path: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in sorted(old.keys() | new.keys()):
        place = f"{path}[{name}]"
        if name not in new:
            yield place, "removed"
        elif name not in old:
            yield place, "added"
        else:
            yield from _compare(place, old[name], new[name])


def _tables(value: Any) -> bool:
    """Whether it is an array of tables; one without entries may be one."""
    return isinstance(value, list | tuple) and all(isinstance(entry, dict) for entry in value)


def _by_name(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {entry.get("name") or entry.get("url") or str(index): entry for index, entry in enumerate(entries)}


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()
