"""Requests sent to a cell that its leaves had not received when they last reported (stale-state correction)."""

from __future__ import annotations

from collections import deque

# Longer on the way than this and four round trips (a new connection with TLS takes three): it was lost.
LOST_AFTER_S = 0.25
LOST_AFTER_ROUND_TRIPS = 4.0


class OnTheWay:
    """When each of them was sent, oldest first; leaves tell only how many they have received so far.

    No clocks are compared, and the forward leg is included. An error heals by itself: with a request too few,
    the next reports find nothing left to take off; one that was lost, or that its leaf never counted, ages
    out. The difference of two bare counts would keep such a request for good, and make a busy cell shunned.
    """

    __slots__ = ("_received", "_sent_s")

    def __init__(self) -> None:
        self._sent_s: deque[float] = deque()
        self._received: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<OnTheWay {len(self._sent_s)}>"

    def __len__(self) -> int:
        return len(self._sent_s)

    def sent(self, now_s: float) -> None:
        """One more."""
        self._sent_s.append(now_s)

    def not_sent(self) -> None:
        """The attempt never got as far as a connection."""
        if self._sent_s:
            self._sent_s.pop()

    def reported(self, now_s: float, address: str, received: int, rtt_s: float) -> None:
        """A leaf said how many of this root's requests it has received since it runs."""
        before = self._received.get(address, received)
        self._received[address] = received
        if received < before:  # it was restarted
            self._sent_s.clear()
        for _ in range(min(received - before, len(self._sent_s))):
            self._sent_s.popleft()
        lost_s = now_s - LOST_AFTER_S - LOST_AFTER_ROUND_TRIPS * rtt_s
        while self._sent_s and self._sent_s[0] < lost_s:
            self._sent_s.popleft()

    def forget(self, address: str) -> None:
        """A leaf does not answer any more; what was on the way to it is lost."""
        if self._received.pop(address, None) is not None:
            self._sent_s.clear()
