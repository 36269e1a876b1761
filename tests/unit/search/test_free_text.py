"""Votes over free text: where no answer can be extracted, texts are grouped by meaning, and the medoid answers."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.answers.equivalence import AnswerMatcher
from search.answers.meaning import Comparison, Vectors, compared
from search.ports import Child, ChildGroup, ExpandRequest, ScoreRequest
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.tree import Step, StepEnd


def at(*degrees: float) -> list[Any]:
    """Vectors in a plane."""
    return [np.array([np.cos(angle), np.sin(angle)], np.float32) for angle in np.radians(degrees)]


def test_the_medoid_is_nearest_to_all_by_hand() -> None:
    # Cosines: 0-1 0.94, 0-2 0.77, 1-2 0.94, and 3 is opposite to 1.
    found = compared([0, 1, 2, 3], [1, 1, 1, 1], at(0, 20, 40, 200), 0.9, by_group=False)
    assert found == Comparison([[0, 1], [2], [3]], 1)


def test_votes_move_the_medoid() -> None:
    assert compared([0, 1, 2], [1, 1, 5], at(0, 20, 100), by_group=False).best == 2


def test_the_largest_group_answers_although_another_text_is_nearer_to_all() -> None:
    # Sums of cosines times votes: 0 has 3.11, 1 has 3.40, 2 has 2.55.
    vectors = at(0, 40, 70)
    assert compared([0, 1, 2], [2, 1, 1], vectors, 0.99, by_group=False).best == 1
    assert compared([0, 1, 2], [2, 1, 1], vectors, 0.99).best == 0
    # Groups of 1 and 2: the member nearer to all.
    assert compared([0, 1, 2], [1, 1, 1], vectors, 0.85) == Comparison([[0], [1, 2]], 1)


def test_without_vectors_the_most_frequent_text_wins_and_the_first_on_a_tie() -> None:
    assert compared([0, 1, 1], [1, 1, 1]) == Comparison([[0], [1, 2]], 1)
    assert compared([0, 1, 1, 0], [1, 1, 1, 1]).best == 0
    assert compared([0, 1], [1.0, 1.5]).best == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 359), min_size=1, max_size=9), st.floats(0.5, 1.0))
def test_every_text_is_in_one_group_with_a_first_text_that_means_the_same(angles: list[int], threshold: float) -> None:
    vectors = at(*angles)
    groups, medoid = compared(range(len(angles)), [1.0] * len(angles), vectors, threshold, by_group=False)
    assert sorted(member for group in groups for member in group) == [*range(len(angles))]
    assert all(vectors[group[0]] @ vectors[member] >= threshold for group in groups for member in group[1:])
    nearness = [sum(float(each @ other) for other in vectors) for each in vectors]
    assert nearness[medoid] == pytest.approx(max(nearness), abs=1e-5)


class Writer:
    """Writes the given texts in turn, and scores each by its length."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        for expansion in request.expansions:
            for branch in reversed(expansion.branches):
                text = self.texts[branch.index % len(self.texts)]
                step = Step((branch.index,), text, StepEnd.END_OF_SEQUENCE)
                yield ChildGroup((Child(expansion.parent, branch.index, (step,), 0),))

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        return [[len(item.steps[-1]) / 100] for item in request.items]


class Angles:
    """Embeds the texts that name an angle."""

    threshold = 0.9

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails = False

    async def vectors_of(self, texts: Sequence[str], timeout_s: float) -> Vectors | None:
        self.calls.append([*texts])
        return None if self.fails else at(*(float(text.split()[-1]) for text in texts))


async def searched(*texts: str, embedding: Angles | None = None, **flat: Any) -> SearchOutcome:
    writer, matcher = Writer(*texts), AnswerMatcher()
    environment = SearchEnvironment(writer, writer, 1000, matcher, text_embedding=embedding)
    given = {"strategy": "self_consistency", "n": len(texts), "seed": 1, "merge_siblings": False, **flat}
    try:
        return await run_search("?", [1], parse_search(given), environment, search_id="s")
    finally:
        matcher.close()


SHOWN = ("north 0", "near 20", "also near 40", "south 200")


async def test_the_medoid_of_free_texts_answers_and_each_text_is_embedded_once() -> None:
    embedding = Angles()
    outcome = await searched(*SHOWN, "NEAR  20", embedding=embedding)
    assert outcome.text == "near 20"
    assert (outcome.selection.answer, outcome.selection.groups, outcome.selection.text_groups) == (None, (), 3)
    assert outcome.selection.agreement == 3 / 5
    assert embedding.calls == [list(SHOWN)]


async def test_texts_in_the_same_words_are_alike_without_an_embedding() -> None:
    outcome = await searched("one", "Other", "two", " other\n")
    assert (outcome.text, outcome.selection.text_groups, outcome.selection.agreement) == ("Other", 3, 1 / 2)


async def test_merged_siblings_vote_as_often_as_they_were_written() -> None:
    outcome = await searched("one", "other", "other", merge_siblings=True)
    assert (outcome.text, outcome.selection.agreement) == ("other", pytest.approx(2 / 3))


async def test_an_embedding_that_fails_leaves_the_texts_as_they_are_and_says_so() -> None:
    embedding = Angles()
    embedding.fails = True
    outcome = await searched(*SHOWN, embedding=embedding)
    assert (outcome.text, outcome.selection.text_groups, outcome.selection.unread) == ("north 0", 4, 4)


async def test_extracted_answers_are_never_embedded() -> None:
    embedding = Angles()
    outcome = await searched(r"\boxed{1} 0", "text 20", "text 30", embedding=embedding)
    assert (outcome.selection.answer, outcome.selection.text_groups, embedding.calls) == ("1", 0, [])


@pytest.mark.parametrize(
    ("selection", "text"), [("weighted", "also near 40"), ("majority", "also near 40"), ("medoid", "near 20")]
)
async def test_scores_decide_over_free_texts_unless_the_medoid_is_asked_for(selection: str, text: str) -> None:
    outcome = await searched(*SHOWN, embedding=Angles(), strategy="best_of_n", selection=selection)
    assert outcome.text == text
