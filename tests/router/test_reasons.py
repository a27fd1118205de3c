"""One table of reason codes: what the program says, what the table knows and what the document tells are the same."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from dlbctl.core.tier import FAILURES
from dlbctl.router.reasons import REASONS

TREE = Path(__file__).resolve().parents[2]
SOURCES = [*(TREE / "dlbctl" / "core").rglob("*.py"), *(TREE / "dlbctl" / "router").rglob("*.py")]
# Where the code stands in what makes an error for a client.
PLACES = {"Reject": 1, "Refusal": 1, "_refuse": 3, "Cancel": 0}
ROLES = ("cell", "server")
CODE = re.compile(r"[a-z]+(_[a-z0-9]+)*")


def said_in(tree: ast.AST) -> Iterator[str]:
    """Every code that is written out where an error is made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            place = PLACES.get(name)
            if place is not None and len(node.args) > place:
                yield from texts(node.args[place])


def texts(node: ast.expr) -> Iterator[str]:
    """What a string may be: written out, or with a role's word in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        choices = [[part.value] if isinstance(part, ast.Constant) else ROLES for part in node.values]
        yield from ("".join(map(str, parts)) for parts in itertools.product(*choices))


def said() -> set[str]:
    """Every code the program may say: where errors are made, and what failures and endings are called."""
    found = {code for path in SOURCES for code in said_in(ast.parse(path.read_text(encoding="utf-8")))}
    found |= {failure[1] for failure in FAILURES.values()}
    tree = ast.parse((TREE / "dlbctl" / "router" / "reasons.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found |= set(texts(node.value))
    return found


def told() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The rows of the document: by whom, and in which phases."""
    text = (TREE / "docs" / "reason-codes.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    return {code.strip("`"): (by, tuple(phases.split(", "))) for code, by, phases, _, _ in rows}


def test_the_table_has_every_code_that_the_program_says_and_no_other() -> None:
    assert said() == set(REASONS)


def test_the_document_tells_what_the_table_has_in_its_order() -> None:
    assert list(told().items()) == [
        (code, (str(reason.by), tuple(map(str, reason.phases)))) for code, reason in REASONS.items()
    ]


def test_codes_are_words_that_never_need_quoting() -> None:
    assert [code for code in REASONS if not CODE.fullmatch(code)] == []


def test_a_code_that_is_missing_would_be_seen() -> None:
    found = said_in(ast.parse('Reject(503, f"no_such_{kind}", "x")\nself._refuse(a, b, 400, "odd", "x")\nCancel("c")'))
    assert set(found) == {"no_such_cell", "no_such_server", "odd", "c"}
