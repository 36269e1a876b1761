"""Allocation of free memory to the expansions of a call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engines.grants import grant_order

CALLS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)), min_size=1, max_size=6)


def written(asked: list[int], least: list[int], room: int) -> tuple[int, ...]:
    """Number of branches of each expansion that are written where there is memory for ``room`` branches."""
    found, full = [0] * len(asked), set()
    for expansion, branch in grant_order(asked, least):
        if branch < least[expansion] or (room > 0 and expansion not in full):
            found[expansion] += 1
        else:
            full.add(expansion)
        room -= 1
    return tuple(found)


@pytest.mark.parametrize(
    ("asked", "least", "room", "expected"),
    [
        ([4, 4], [1, 1], 100, (4, 4)),
        ([4, 4], [1, 1], 0, (1, 1)),
        ([4, 4], [1, 1], 5, (3, 2)),
        ([12, 4], [1, 1], 8, (6, 2)),
        ([12, 1, 1], [1, 1, 1], 8, (6, 1, 1)),
        ([4, 4], [0, 0], 0, (0, 0)),
        ([2], [5], 0, (2,)),
    ],
)
def test_memory_is_given_in_proportion_to_the_requested_branches(
    asked: list[int], least: list[int], room: int, expected: tuple[int, ...]
) -> None:
    assert written(asked, least, room) == expected


@given(CALLS)
def test_every_branch_is_tried_once_the_required_ones_first_and_those_of_an_expansion_in_order(
    calls: list[tuple[int, int]],
) -> None:
    asked, least = [count for count, _ in calls], [needed for _, needed in calls]
    order = grant_order(asked, least)
    needed = [branch < least[expansion] for expansion, branch in order]
    assert needed == sorted(needed, reverse=True)
    for expansion, count in enumerate(asked):
        assert [branch for each, branch in order if each == expansion] == list(range(count))
