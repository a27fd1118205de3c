"""The tables and keys of a configuration file, read from the msgspec structures that decode it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import NODEFAULT, Struct, inspect


class Key(NamedTuple):
    """One key: its name, and in words its type, what it does, and its default ("" when it is required)."""

    name: str
    type: str
    description: str
    default: str

    @property
    def text(self) -> str:
        """All that there is to say of it."""
        fact = f"Default: {self.default}." if self.default else "Required."
        return f"{self.description} {fact}".strip()


class Table(NamedTuple):
    """One table of a file. header: as it is written, empty for the keys at the file's top."""

    header: str
    structure: type[Struct]
    description: str
    keys: tuple[Key, ...]
    depth: int


def tables(structure: type[Struct]) -> list[Table]:
    """Every table that a file decoded into this structure may have, each followed by those within it."""
    top = inspect.type_info(structure)
    assert isinstance(top, inspect.StructType)
    return list(_walk(top, "", "", 0, many=False))


def _walk(node: inspect.StructType, path: str, description: str, depth: int, *, many: bool) -> Iterator[Table]:
    plain = (field for field in node.fields if _table_in(field.type) is None)
    keys = tuple(map(_key, sorted(plain, key=lambda field: not field.required)))  # what has to be there comes first
    if keys or depth:
        header = f"[[{path}]]" if many else f"[{path}]"
        yield Table(header if path else "", node.cls, description or _summary(node), keys, depth)
    for field in node.fields:
        inner = _table_in(field.type)
        if inner is not None:
            below = f"{path}.{field.encode_name}".strip(".")
            yield from _walk(inner, below, _described(field), depth + 1, many=_is_array(field.type))


def _key(field: inspect.Field) -> Key:
    return Key(field.encode_name, _in_words(field.type), _described(field), _default(field))


def _described(field: inspect.Field) -> str:
    """The description that the field's annotation carries."""
    node = field.type
    if isinstance(node, inspect.Metadata):
        return str((node.extra_json_schema or {}).get("description", ""))
    return ""


def _summary(node: inspect.StructType) -> str:
    return (node.cls.__doc__ or "").strip().split("\n\n")[0]


def _table_in(node: inspect.Type) -> inspect.StructType | None:
    """The structure that a field holds, alone or in an array; None for a plain value."""
    match _bare(node):
        case inspect.StructType() as found:
            return found
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return _table_in(item)
        case _:
            return None


def _is_array(node: inspect.Type) -> bool:
    return isinstance(_bare(node), inspect.VarTupleType | inspect.ListType)


def _bare(node: inspect.Type) -> inspect.Type:
    """A type without its annotations, and without the None that stands for a key left out."""
    while True:
        match node:
            case inspect.Metadata(type=node):
                continue
            case inspect.UnionType(types=kinds) if len(some := _without_none(kinds)) == 1:
                node = some[0]
            case _:
                return node


def _without_none(kinds: tuple[inspect.Type, ...]) -> list[inspect.Type]:
    return [kind for kind in kinds if not isinstance(kind, inspect.NoneType)]


def _in_words(node: inspect.Type, s: str = "") -> str:
    """A type as people say it. s: the plural's, where there are many."""
    match _bare(node):
        case inspect.LiteralType(values=values):
            return " or ".join(f"`{_literal(value)}`" for value in values)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return f"array{s} of {_in_words(item, 's')}"
        case inspect.DictType(value_type=value):
            return f"table{s}" if isinstance(_bare(value), inspect.AnyType) else f"table{s} of {_in_words(value, 's')}"
        case inspect.UnionType(types=kinds):
            return " or ".join(_in_words(kind, s) for kind in _without_none(kinds))
        case inspect.IntType() as number:
            return f"integer{s}{_range(number)}"
        case inspect.FloatType() as number:
            return f"number{s}{_range(number)}"
        case inspect.StrType():
            return f"string{s}"
        case inspect.BoolType():
            return f"boolean{s}"
        case other:
            raise TypeError(f"a configuration key of type {other} has no words yet: add them here")


def _range(number: inspect.IntType | inspect.FloatType) -> str:
    bounds = (("at least", number.ge), ("above", number.gt), ("at most", number.le), ("below", number.lt))
    return "".join(f", {words} {bound:g}" for words, bound in bounds if bound is not None)


def _default(field: inspect.Field) -> str:
    if field.default is NODEFAULT and field.default_factory is NODEFAULT:
        return ""
    value = field.default if field.default_factory is NODEFAULT else field.default_factory()
    if value is None:
        return "none"
    return "empty" if value in ("", (), [], {}) else f"`{_literal(value)}`"


def _literal(value: Any) -> str:
    """A value as TOML writes it; JSON writes those that occur the same way."""
    return json.dumps(value)
