"""Service objectives: what `--slo` says, and whether a request met it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlbctl.core.errors import UsageError

_HINT = "as in --slo ttft=2s,e2e=30s or --slo ttft=500ms,goodput=0.95"
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ms|s|m|)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits every request should keep, and the share of requests that must (None: reported only)."""

    ttft_s: float | None = None
    e2e_s: float | None = None
    goodput: float | None = None

    def met(self, ttft_s: float | None, e2e_s: float) -> bool:
        """Whether a successful request kept every limit; an unknown time to first token keeps none."""
        if self.ttft_s is not None and (ttft_s is None or ttft_s > self.ttft_s):
            return False
        return self.e2e_s is None or e2e_s <= self.e2e_s


def parse_objective(text: str) -> Objective:
    """Read `ttft=2s,e2e=30s[,goodput=0.95]`. Raises UsageError."""
    values: dict[str, float] = {}
    for item in text.split(","):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in ("ttft", "e2e", "goodput") or key in values:
            raise UsageError(f"--slo {text!r}: {item!r} is not one of ttft=, e2e=, goodput=", hint=_HINT)
        values[key] = _share(text, value) if key == "goodput" else _seconds(text, value)
    if not {"ttft", "e2e"} & values.keys():
        raise UsageError(f"--slo {text!r}: no limit to keep", hint=_HINT)
    return Objective(values.get("ttft"), values.get("e2e"), values.get("goodput"))


def _seconds(text: str, value: str) -> float:
    match = _DURATION.fullmatch(value)
    if match is None or float(match["number"]) == 0:
        raise UsageError(f"--slo {text!r}: {value!r} is not a duration", hint=_HINT)
    return float(match["number"]) * _SECONDS[match["unit"]]


def _share(text: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UsageError(f"--slo {text!r}: goodput {value!r} is not a share above 0, at most 1", hint=_HINT)
    return share
