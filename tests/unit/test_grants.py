"""Allocation of free memory to the expansions of a call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engines.grants import grant

CALLS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)), min_size=1, max_size=6)


def granted(asked: list[int], least: list[int], room: int) -> tuple[int, ...]:
    left = room

    def take(expansion: int, branch: int, needed: bool) -> bool:
        nonlocal left
        left -= 1
        return needed or left >= 0

    return grant(asked, least, take)


@pytest.mark.parametrize(
    ("asked", "least", "room", "written"),
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
def test_grants_are_proportional_to_the_requested_branches(
    asked: list[int], least: list[int], room: int, written: tuple[int, ...]
) -> None:
    assert granted(asked, least, room) == written


@given(calls=CALLS, refusals=st.randoms(use_true_random=False))
def test_mandatory_branches_are_taken_first_and_grants_are_a_prefix(
    calls: list[tuple[int, int]], refusals: st.DataObject
) -> None:
    taken: list[tuple[int, int, bool]] = []
    refused: set[int] = set()

    def take(expansion: int, branch: int, needed: bool) -> bool:
        assert expansion not in refused, "of this one no more is tried"
        if not needed and refusals.random() < 0.3:  # type: ignore[attr-defined]
            refused.add(expansion)
            return False
        taken.append((expansion, branch, needed))
        return True

    asked, least = [count for count, _ in calls], [needed for _, needed in calls]
    written = grant(asked, least, take)

    for expansion, count in enumerate(written):
        assert min(asked[expansion], least[expansion]) <= count <= asked[expansion]
        assert count == asked[expansion] or expansion in refused
        own = [(branch, needed) for each, branch, needed in taken if each == expansion]
        assert own == [(branch, branch < least[expansion]) for branch in range(count)]
    needs = [needed for _, _, needed in taken]
    assert needs == sorted(needs, reverse=True)
