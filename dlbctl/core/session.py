"""What a client's session is called between routers: 64 bits, the same on every machine and at every time."""

from __future__ import annotations

import xxhash


def session_of(name: bytes) -> int:
    """The session that a client calls by this name; 0, for none, where it is empty."""
    return xxhash.xxh3_64_intdigest(name) if name else 0
