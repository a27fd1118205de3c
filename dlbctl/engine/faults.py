"""Faults an engine can be told to show, at its start or live."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Share = Annotated[float, Meta(ge=0, le=1)]


class Faults(Struct, kw_only=True, forbid_unknown_fields=True):
    """The faults in force; all off by default.

    error_rate, hang_rate: share of requests for text that are answered 500, or never.
    slowdown: factor on every step's time.
    down: connections are reset instead of answered; only /debug/faults still works.
    crash_after: requests taken until the engine dies with all its connections; 0 never.
    """

    error_rate: Share = 0.0
    hang_rate: Share = 0.0
    slowdown: Annotated[float, Meta(gt=0)] = 1.0
    down: bool = False
    crash_after: Annotated[int, Meta(ge=0)] = 0
