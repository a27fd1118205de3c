"""KV memory in blocks: who holds how many, and which hold prompts that a later request may share.

Blocks are counted, not numbered: nothing here depends on where one lies. A block is private to one
sequence, or shared under the hash of the prompt up to its end; shared blocks that nobody uses stay
until their place is needed, the least recently used going first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Lease:
    """The blocks of one sequence: the hashes of the shared ones and the number of private ones."""

    shared: list[int] = field(default_factory=list)
    private: int = 0


class BlockPool:
    """A budget of KV blocks with a prefix cache in it."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.version = 0
        """Counts leases ended and prompts published: a lease that failed succeeds no sooner."""
        self._private = 0
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<BlockPool {self.leased}/{self.blocks} leased, {len(self._idle)} idle>"

    @property
    def leased(self) -> int:
        """Blocks that sequences hold; the rest is free or could be freed at once."""
        return self._private + len(self._users) - len(self._idle)

    @property
    def occupied(self) -> int:
        """Blocks with content, idle cached ones included; never more than the budget."""
        return self._private + len(self._users)

    def matched(self, hashes: Sequence[int], limit: int) -> int:
        """How many leading blocks are cached, at most `limit`."""
        users = self._users
        count = 0
        for digest in islice(hashes, limit):
            if digest not in users:
                break
            count += 1
        return count

    def lease(self, hashes: Sequence[int], shared: int, total: int) -> Lease | None:
        """Take `total` blocks, the first `shared` of them cached (see `matched`); None if too few."""
        reused = list(islice(hashes, shared))
        idle = self._idle
        woken = sum(1 for digest in reused if digest in idle)
        if total - shared + woken > self.blocks - self.leased:
            return None
        for digest in reused:
            self._users[digest] += 1
            idle.pop(digest, None)
        self._private += total - shared
        self._evict()
        return Lease(reused, total - shared)

    def publish(self, lease: Lease, hashes: Sequence[int]) -> None:
        """The prompt is computed: its blocks can be shared from now on.

        A block that someone else published meanwhile stays private here, a duplicate, as in vLLM.
        """
        users = self._users
        for digest in islice(hashes, len(lease.shared), None):
            if digest not in users:
                users[digest] = 1
                lease.shared.append(digest)
                lease.private -= 1
                self._private -= 1
        self.version += 1

    def release(self, lease: Lease) -> None:
        """Give everything back; the end of a prompt is evicted before its start, which others may share."""
        users, idle = self._users, self._idle
        for digest in reversed(lease.shared):
            users[digest] -= 1
            if not users[digest]:
                idle[digest] = None
        self._private -= lease.private
        lease.shared.clear()
        lease.private = 0
        self.version += 1

    def _evict(self) -> None:
        for _ in range(self.occupied - self.blocks):
            digest, _ = self._idle.popitem(last=False)
            del self._users[digest]
