"""Blocks that only pending stores hold."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvstore.connector.storing import StoringBlocks


def pool(*holders: int) -> Any:
    """A pool of blocks, each with its number of holders."""
    return SimpleNamespace(blocks=[SimpleNamespace(ref_cnt=count) for count in holders])


def test_blocks_that_a_request_also_holds_are_not_counted() -> None:
    storing = StoringBlocks()
    storing.begins("one", [0, 1])
    storing.begins("two", [1, 2])

    assert storing.count(pool(1, 2, 1)) == 3
    assert storing.count(pool(2, 3, 1)) == 1
    storing.ends("one")
    assert storing.count(pool(0, 1, 1)) == 2
    storing.ends("two")
    storing.ends("two")
    assert storing.count(pool(0, 0, 0)) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.lists(st.integers(0, 5), unique=True))))
def test_the_count_equals_the_blocks_of_open_stores(events: list[tuple[str, bool, list[int]]]) -> None:
    storing = StoringBlocks()
    held: dict[str, list[int]] = {}
    for name, begins, blocks in events:
        if begins:
            storing.begins(name, blocks)
            held[name] = blocks
        else:
            storing.ends(name)
            held.pop(name, None)
        holders = [sum(block in each for each in held.values()) for block in range(6)]
        assert storing.count(pool(*holders)) == sum(count > 0 for count in holders)
