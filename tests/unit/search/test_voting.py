"""Scores of paths, and the answer that wins."""

import pytest

from search.answers.voting import AnswerSelection, Ballot, Candidate, SelectionRule, best_groups, decisive_shares
from search.strategies.path_score import Aggregation, aggregate
from search.tree import Node


@pytest.mark.parametrize(("how", "score"), [("last", 0.5), ("min", 0.2), ("prod", 0.08), ("mean", 0.5)])
def test_scores_are_aggregated(how: str, score: float) -> None:
    assert aggregate([0.8, 0.2, 0.5], Aggregation(how)) == pytest.approx(score)
    assert aggregate([], Aggregation(how)) == 0.0


def candidates(*given: tuple[float | None, int | None]) -> list[Candidate]:
    return [
        Candidate(Node((index,), None), score, None if group is None else f"answer {group}", group)
        for index, (score, group) in enumerate(given)
    ]


def choose(among: list[Candidate], selection: SelectionRule) -> AnswerSelection:
    ballot = Ballot()
    for candidate in among:
        ballot.add(candidate)
    return ballot.selected(selection)


@pytest.mark.parametrize(
    ("selection", "answering", "agreement"), [("naive", 0, 1 / 6), ("weighted", 3, 2 / 6), ("majority", 5, 3 / 6)]
)
def test_the_three_rules_select_different_answers(selection: str, answering: int, agreement: float) -> None:
    paths = candidates((0.9, 0), (0.6, 1), (0.1, 2), (0.7, 1), (0.2, 2), (0.3, 2))
    selection = choose(paths, SelectionRule(selection))
    assert selection.node.id == (answering,)
    assert selection.agreement == pytest.approx(agreement)
    assert selection.score == paths[answering].score
    assert sum(group.size for group in selection.groups) == 6
    assert selection.groups[0].best is selection.node


@pytest.mark.parametrize("selection", SelectionRule)
def test_the_first_wins_a_tie(selection: SelectionRule) -> None:
    assert choose(candidates((0.5, 3), (0.5, 1), (0.5, 1), (0.5, 3)), selection).node.id == (0,)


@pytest.mark.parametrize("selection", SelectionRule)
def test_a_path_without_an_answer_answers_only_when_no_path_has_one(selection: SelectionRule) -> None:
    selection = choose(candidates((0.9, None), (0.1, 0)), selection)
    assert (selection.answer, selection.agreement) == ("answer 0", 0.5)
    selection = choose(candidates((0.2, None), (0.9, None), (0.9, None)), selection)
    assert (selection.node.id, selection.answer, selection.agreement, selection.groups) == ((1,), None, 0.0, ())


@pytest.mark.parametrize("selection", [SelectionRule.WEIGHTED, SelectionRule.MAJORITY])
def test_unscored_paths_vote_by_number(selection: SelectionRule) -> None:
    selection = choose(candidates((None, 0), (None, 1), (None, 1)), selection)
    assert (selection.node.id, selection.score) == ((1,), None)
    assert choose(candidates((None, 0), (None, 1), (None, 1)), SelectionRule.NAIVE).node.id == (0,)


def test_selection_among_no_candidates_fails() -> None:
    with pytest.raises(ValueError, match="no candidates"):
        choose([], SelectionRule.NAIVE)


@pytest.mark.parametrize(
    ("selection", "shares"),
    [
        ("naive", {0: 0.9, 1: 0.7, 2: 0.3}),
        ("weighted", {0: 0.9 / 2.8, 1: 1.3 / 2.8, 2: 0.6 / 2.8}),
        ("majority", {0: 1 / 7, 1: 2 / 7, 2: 3 / 7}),
    ],
)
def test_the_winner_has_the_most_of_what_decides(selection: str, shares: dict[int, float]) -> None:
    rule = SelectionRule(selection)
    selected = choose(candidates((0.9, 0), (0.6, 1), (0.1, 2), (0.7, 1), (0.2, 2), (0.3, 2), (0.8, None)), rule)
    groups = best_groups(selected.groups, rule)
    found = decisive_shares(groups, rule)
    assert found == sorted(found, reverse=True)
    assert groups[0].answer == selected.answer
    assert dict(zip((group.answer for group in groups), found, strict=True)) == pytest.approx(
        {f"answer {number}": share for number, share in shares.items()}
    )


def test_weights_of_zero_decide_nothing() -> None:
    selected = choose(candidates((0.0, 0), (0.0, 1)), SelectionRule.WEIGHTED)
    assert decisive_shares(selected.groups, SelectionRule.WEIGHTED) == [0.0, 0.0]
