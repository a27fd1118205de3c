"""Names as people write them: several with commas, counted, and the nearest to one that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dlbctl.core.errors import UsageError


def counted(number: int, what: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def listed(texts: Iterable[str] | None, option: str) -> list[str]:
    """The values of an option that may be repeated and have several with commas; UsageError when it names none."""
    given = list(texts or ())
    found = [part.strip() for text in given for part in text.split(",") if part.strip()]
    if given and not found:
        raise UsageError(f"{option} {','.join(given)!r}: names nothing", hint="leave it out, or name one")
    return found


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that may have been meant."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """A hint that names the one that is near, or else says `otherwise`."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else otherwise
