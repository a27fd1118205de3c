"""Requests sent to a cell that its leaves had not received when they last reported (stale-state correction)."""

from __future__ import annotations

from collections import deque

# A report that comes now tells of what was sent a round trip ago. This much more is patience: the interval of
# reports, a slow reader, the time to connect.
OVERDUE_S = 0.05
# Requests that were overdue in every report of a window this long are lost.
WINDOW_S = 1.0


class OnTheWay:
    """When each of them was sent, oldest first; leaves tell only how many they have received so far.

    No clocks are compared, and the forward leg is included. Errors heal: with a request too few here, the next
    reports find nothing left to take off; one that was lost, or that its leaf never counted, stays overdue and
    is dropped. The difference of two bare counts would keep it, and make a busy cell look fuller for good.
    """

    __slots__ = ("_lost", "_received", "_sent_s", "_window_ends_s")

    def __init__(self) -> None:
        self._sent_s: deque[float] = deque()
        self._received: dict[str, int] = {}
        self._lost = 0
        self._window_ends_s = 0.0

    def __repr__(self) -> str:
        return f"<OnTheWay {len(self._sent_s)}>"

    def __len__(self) -> int:
        return len(self._sent_s)

    def sent(self, now_s: float) -> None:
        """One more."""
        self._sent_s.append(now_s)

    def not_sent(self) -> None:
        """The last attempt never got as far as a connection."""
        if self._sent_s:
            self._sent_s.pop()

    def reported(self, now_s: float, address: str, received: int, rtt_s: float) -> None:
        """A leaf said how many of this root's requests it has received since it runs."""
        before = self._received.get(address, received)
        self._received[address] = received
        if received < before:  # it was restarted
            self._sent_s.clear()
        self._drop(received - before)
        self._drop_lost(now_s, rtt_s)

    def forget(self, address: str) -> None:
        """A leaf does not answer any more; what was on the way to it is lost."""
        if self._received.pop(address, None) is not None:
            self._sent_s.clear()

    def _drop_lost(self, now_s: float, rtt_s: float) -> None:
        overdue = self._count_before(now_s - rtt_s - OVERDUE_S)
        if overdue < self._lost:
            self._lost = overdue
        if now_s >= self._window_ends_s:
            self._drop(self._lost)
            self._lost = len(self._sent_s)
            self._window_ends_s = now_s + WINDOW_S

    def _drop(self, count: int) -> None:
        for _ in range(min(count, len(self._sent_s))):
            self._sent_s.popleft()

    def _count_before(self, before_s: float) -> int:
        for count, sent_s in enumerate(self._sent_s):
            if sent_s >= before_s:
                return count
        return len(self._sent_s)
