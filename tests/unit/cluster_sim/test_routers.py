"""Which simulated replica gets a call."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster_sim.cluster import AtHome, BySearch
from cluster.homes import most_calls


@dataclass(eq=False)
class Replica:
    ongoing: int
    pressure: float = 0.0


loads = st.lists(st.integers(0, 20), min_size=1, max_size=8)


@given(loads, st.lists(st.text(max_size=8), min_size=1, max_size=8))
def test_by_search_a_search_stays_where_it_is(ongoing: list[int], searches: list[str]) -> None:
    replicas, router = [Replica(calls) for calls in ongoing], BySearch(1)
    first = {search: router.choose(replicas, search) for search in searches}
    for replica in replicas:
        replica.ongoing += 7

    assert all(router.choose(replicas, search) is first[search] for search in searches)


@given(loads, st.text(max_size=8))
def test_at_home_unless_that_has_more_than_its_share(ongoing: list[int], search: str) -> None:
    replicas, router = [Replica(calls) for calls in ongoing], AtHome(1)
    chosen, most = router.choose(replicas, search), most_calls(sum(ongoing), len(ongoing))  # all of them are its homes

    assert chosen.ongoing < most
    home, *_ = router.homes(replicas, search)
    assert chosen is home or home.ongoing >= most
