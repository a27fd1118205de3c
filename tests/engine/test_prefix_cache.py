from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.engine.prefix_cache import BlockPool, Lease


@dataclass
class Naive:
    """The same pool as lists that are searched: what is leased by whom, and what is cached, oldest first."""

    size: int
    leases: list[tuple[list[int], int]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    def in_use(self, digest: int) -> bool:
        return any(digest in shared for shared, _ in self.leases)

    def matched(self, hashes: list[int], limit: int) -> int:
        count = 0
        while count < limit and hashes[count] in self.cached:
            count += 1
        return count

    def free_or_idle(self) -> int:
        used = sum(1 for digest in self.cached if self.in_use(digest))
        return self.size - used - sum(private for _, private in self.leases)

    def lease(self, hashes: list[int], shared: int, total: int) -> bool:
        reused = hashes[:shared]
        idle = [digest for digest in reused if not self.in_use(digest)]
        if total - shared > self.free_or_idle() - len(idle):
            return False
        self.leases.append((list(reused), total - shared))
        while len(self.cached) + sum(private for _, private in self.leases) > self.size:
            self.cached.remove(next(digest for digest in self.cached if not self.in_use(digest)))
        return True

    def publish(self, which: int, hashes: list[int]) -> None:
        shared, private = self.leases[which]
        new = [digest for digest in hashes[len(shared) :] if digest not in self.cached]
        self.cached += new
        self.leases[which] = (shared + new, private - len(new))

    def release(self, which: int) -> None:
        shared, _ = self.leases.pop(which)
        for digest in reversed(shared):
            if not self.in_use(digest):
                self.cached.remove(digest)
                self.cached.append(digest)


def chain(family: int, blocks: int) -> list[int]:
    """Hashes of a prompt: families share their first two blocks."""
    return [block if block < 2 else 100 * (family + 1) + block for block in range(blocks)]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["lease", "publish", "release"]),
        st.integers(0, 3),
        st.integers(1, 8),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(OPERATIONS)
def test_hits_and_evictions_agree_with_a_naive_pool(operations: list[tuple[str, int, int, int]]) -> None:
    pool, naive = BlockPool(12), Naive(12)
    leases: list[tuple[Lease, list[int]]] = []
    published: list[bool] = []
    for kind, family, blocks, extra in operations:
        hashes = chain(family, blocks)
        if kind == "lease":
            shared = pool.matched(hashes, blocks)
            assert shared == naive.matched(hashes, blocks)
            lease = pool.lease(hashes, shared, blocks + extra)
            assert (lease is not None) == naive.lease(hashes, shared, blocks + extra)
            if lease is not None:
                leases.append((lease, hashes))
                published.append(False)
        elif leases:
            which = family % len(leases)
            if kind == "publish" and not published[which]:
                pool.publish(*leases[which])
                naive.publish(which, leases[which][1])
                published[which] = True
            elif kind == "release":
                pool.release(leases.pop(which)[0])
                published.pop(which)
                naive.release(which)
        assert pool.occupied <= pool.blocks
        assert pool.leased == pool.blocks - naive.free_or_idle()
        assert pool.occupied == len(naive.cached) + sum(private for _, private in naive.leases)
    for lease, _ in leases:
        pool.release(lease)
    assert pool.leased == 0


def test_the_end_of_a_prompt_is_evicted_before_its_start() -> None:
    pool = BlockPool(4)
    lease = pool.lease([1, 2, 3, 4], 0, 4)
    assert lease is not None
    pool.publish(lease, [1, 2, 3, 4])
    pool.release(lease)
    assert pool.lease([9], 0, 1) is not None
    assert pool.matched([1, 2, 3, 4], 4) == 3


def test_a_pool_shows_its_state() -> None:
    pool = BlockPool(4)
    lease = pool.lease([1], 0, 3)
    assert lease is not None
    assert repr(pool) == "<BlockPool 3/4 leased, 0 idle>"
    pool.publish(lease, [1])
    pool.release(lease)
    assert repr(pool) == "<BlockPool 0/4 leased, 1 idle>"
