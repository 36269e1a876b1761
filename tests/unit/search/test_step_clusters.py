"""Clusters of steps: the table of pairs, and properties that hold for any texts."""

import random
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_pairs import PAIRS, Pair

from search.strategies.levels.retention import clusters_of
from search.strategies.levels.step_clusters import clusters_by_contents
from search.strategies.levels.step_contents import contents_of


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.a[:30]}|{pair.b[:30]}")
def test_pairs_of_steps_are_clustered_as_in_the_table(pair: Pair) -> None:
    taken = "same" if clusters_by_contents([pair.a, pair.b]) == [0, 0] else "different"
    assert taken == pair.ours
    assert bool(pair.why) == (pair.truth != pair.ours)


def test_clusters_are_numbered_as_they_appear() -> None:
    steps = ["So 1 + 1 = 2.", "The next thing is the area of the lawn.", "We get 1 + 1 = 2.", "1 + 1 = 3"]
    assert clusters_by_contents(steps) == [0, 1, 0, 2]
    assert clusters_by_contents([]) == []
    assert clusters_by_contents(["", "  ", "so it is"]) == [0, 0, 0]


PIECES = [
    "12",
    "+",
    "7",
    "=",
    "19",
    "$x^2$",
    r"\frac{1}{2}",
    "apples",
    "pears",
    "not",
    "red",
    "(",
    ")",
    "\n",
    "So",
    "-",
]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map(" ".join), min_size=1, max_size=12), st.randoms())
def test_the_order_of_steps_changes_no_cluster(steps: list[str], rng: random.Random) -> None:
    order = list(range(len(steps)))
    rng.shuffle(order)
    before, after = clusters_of(steps, None), clusters_of([steps[index] for index in order], None)
    for i, first in enumerate(order):
        for j, second in enumerate(order):
            assert (after[i] == after[j]) == (before[first] == before[second])


@given(st.text(alphabet="\\$([{}])*#^_ \n1x+=/.,abfrctext\x00é", max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    assert clusters_by_contents([text, text + " 12345 = 54321", text]) == [0, 1, 0]


@pytest.mark.parametrize(
    "trap", [r"\frac{", r"\text{", r"\[ ", r"\( x", "$$ ", "$", "(", "\n", "9", "1,000", "^ ", "**"]
)
def test_reading_a_step_takes_linear_time(trap: str) -> None:
    started = process_time()
    contents_of(trap * (8000 // len(trap)))
    assert process_time() - started < 1.0
