"""Routers of the simulated cluster."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster_sim.cluster import AtHome, BySearch, Pool, PoolSize


@dataclass(eq=False)
class Replica:
    ongoing: int
    pressure: float = 0.0


loads = st.lists(st.integers(0, 20), min_size=1, max_size=8)


@given(loads, st.lists(st.text(max_size=8), min_size=1, max_size=8))
def test_hashing_by_search_keeps_a_search_on_its_replica(ongoing: list[int], searches: list[str]) -> None:
    replicas, router = [Replica(calls) for calls in ongoing], BySearch(1)
    first = {search: router.choose(replicas, search, {}) for search in searches}

    calls = {id(replica): 7 for replica in replicas}
    assert all(router.choose(replicas, search, calls) is first[search] for search in searches)


def test_a_caller_counts_its_own_calls_until_they_end() -> None:
    pool = Pool(lambda: Replica(1000), PoolSize(2, 2), AtHome, 1)  # calls of other callers are unknown
    handle, other = pool.handle(), pool.handle()
    with handle.call("a") as home, handle.call("b") as second:
        assert second is not home, "the less busy one"
        with other.call("a"), other.call("a"), other.call("a"), handle.call("a") as again:
            assert again is home
    with handle.call("c"), handle.call("c"), handle.call("c"):
        pass
    with handle.call("a") as again, handle.call("b") as at_second:
        assert (again, at_second) == (home, second), "they have ended"
