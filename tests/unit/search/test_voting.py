"""Scores of paths, and the answer that wins."""

import pytest

from search.answers.voting import Candidate, Selection, choose
from search.strategies.path_score import Aggregation, aggregate
from search.tree import Node


@pytest.mark.parametrize(("how", "score"), [("last", 0.5), ("min", 0.2), ("prod", 0.08), ("mean", 0.5)])
def test_aggregates(how: str, score: float) -> None:
    assert aggregate([0.8, 0.2, 0.5], Aggregation(how)) == pytest.approx(score)
    assert aggregate([], Aggregation(how)) == 0.0


def candidates(*given: tuple[float | None, int | None]) -> list[Candidate]:
    return [
        Candidate(Node((place,), None), score, None if group is None else f"answer {group}", group)
        for place, (score, group) in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("selection", "answering", "agreement"), [("naive", 0, 1 / 6), ("weighted", 3, 2 / 6), ("majority", 5, 3 / 6)]
)
def test_three_rules_three_answers(selection: str, answering: int, agreement: float) -> None:
    paths = candidates((0.9, 0), (0.6, 1), (0.1, 2), (0.7, 1), (0.2, 2), (0.3, 2))
    verdict = choose(paths, Selection(selection))
    assert verdict.node.id == (answering,)
    assert verdict.agreement == pytest.approx(agreement)
    assert verdict.score == paths[answering].score
    assert sum(group.size for group in verdict.groups) == 6
    assert verdict.groups[0].best is verdict.node


@pytest.mark.parametrize("selection", Selection)
def test_the_first_wins_a_tie(selection: Selection) -> None:
    assert choose(candidates((0.5, 3), (0.5, 1), (0.5, 1), (0.5, 3)), selection).node.id == (0,)


@pytest.mark.parametrize("selection", Selection)
def test_a_path_without_an_answer_answers_only_when_no_path_has_one(selection: Selection) -> None:
    verdict = choose(candidates((0.9, None), (0.1, 0)), selection)
    assert (verdict.answer, verdict.agreement) == ("answer 0", 0.5)
    verdict = choose(candidates((0.2, None), (0.9, None), (0.9, None)), selection)
    assert (verdict.node.id, verdict.answer, verdict.agreement, verdict.groups) == ((1,), None, 0.0, ())


@pytest.mark.parametrize("selection", [Selection.WEIGHTED, Selection.MAJORITY])
def test_unscored_paths_vote_by_number(selection: Selection) -> None:
    verdict = choose(candidates((None, 0), (None, 1), (None, 1)), selection)
    assert (verdict.node.id, verdict.score) == ((1,), None)
    assert choose(candidates((None, 0), (None, 1), (None, 1)), Selection.NAIVE).node.id == (0,)


def test_nothing_to_choose_among() -> None:
    with pytest.raises(ValueError, match="no candidates"):
        choose([], Selection.NAIVE)
