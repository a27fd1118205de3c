"""Names as people write them: one that there is not is answered with the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that may have been meant."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """A hint that names the one that is near, or else says `otherwise`."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else otherwise
