"""What keeps a root from using leaves: shown to whoever asks, and logged when it changes, not at every attempt."""

from __future__ import annotations

import logging

REMIND_S = 300.0

NO_ANSWER = "does not answer"
OTHER_TOKEN = "refuses this root: its peer token is another one"  # noqa: S105 - words, no secret

_LOG = logging.getLogger(__name__)


class LeafFaults:
    """The fault of each leaf that cannot be used, by address, in words that follow the leaf's name."""

    def __init__(self) -> None:
        self._faults: dict[str, str] = {}
        self._told_s: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<LeafFaults {self._faults}>"

    def of(self, address: str) -> str:
        """What keeps a leaf from being used, empty when nothing does."""
        return self._faults.get(address, "")

    def note(self, now_s: float, cell: str, address: str, fault: str) -> None:
        """An attempt to use a leaf ended so. Logged when it is news, and every few minutes while it lasts."""
        if self._faults.get(address) != fault or now_s - self._told_s[address] >= REMIND_S:
            _LOG.warning("leaf %s of cell %s %s; trying on", address, cell, fault)
            self._told_s[address] = now_s
        self._faults[address] = fault

    def clear(self, cell: str, address: str) -> None:
        """A leaf reports as it should."""
        if address in self._faults:
            _LOG.info("leaf %s of cell %s reports again", address, cell)
            self.forget(address)

    def forget(self, address: str) -> None:
        """A leaf is not asked any more."""
        self._faults.pop(address, None)
        self._told_s.pop(address, None)
