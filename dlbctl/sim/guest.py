"""What a simulated leaf holds open, in whichever way it came to be there: users' requests and its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.events import Forward, Reject
    from dlbctl.core.exchange import Exchange


class Guest:
    """What the leaf itself does with an exchange that is open at its tier."""

    def turned(self, action: Forward | Reject) -> None:
        """Its waiting for room is over."""
        raise NotImplementedError

    def served_since_s(self) -> float | None:
        """When the server got it that has it; None if none does."""
        raise NotImplementedError

    def overdue(self, exchange: Exchange) -> None:
        """Its leaf has waited too long for the server's first token."""
        raise NotImplementedError

    def lose(self) -> None:
        """The whole cell is gone, with whatever was there of it."""
        raise NotImplementedError
