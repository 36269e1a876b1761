"""Long work of one search yields to other searches, and yielding does not change its tree."""

import asyncio
from fractions import Fraction

import pytest
import search_fakes

from search.answers.equivalence import AnswerMatcher
from search.answers.voting import Ballot, Candidate, SelectionRule
from search.run.answer_selection import best_open_path, select_answer
from search.settings import parse_search
from search.snapshot import tree_as_json
from search.strategies.base import Strategy
from search.strategies.catalog import STRATEGIES
from search.tools import turns
from search.tree import Node, SearchTree, Step, StepEnd


def solutions(count: int) -> SearchTree:
    tree = SearchTree()
    for number, node in enumerate(tree.request(tree.root, count)):
        tree.write(node, Step((1,), f"\\boxed{{{number}}}", StepEnd.END_OF_SEQUENCE), ends=number % 2 == 0)
        tree.complete(node, 0.5)
    return tree


def strategy() -> Strategy:
    return parse_search({"strategy": "best_of_n"}).strategy


async def turns_of_others(work: asyncio.Task[object]) -> int:
    count = 0
    while not work.done():
        await asyncio.sleep(0)
        count += 1
    return count


async def test_selection_among_many_answers_yields(matcher: AnswerMatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    tree = solutions(400)
    work = asyncio.create_task(select_answer(tree.terminals, tree, strategy(), matcher))
    assert await turns_of_others(work) > 2 * len(tree.terminals)  # each is extracted, and each is compared
    work = asyncio.create_task(best_open_path(tree, strategy()))
    assert await turns_of_others(work) > 400


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_yielding_changes_no_tree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tree_as_json(search_fakes.search({"strategy": name})[1].tree)
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    assert tree_as_json(search_fakes.search({"strategy": name})[1].tree) == whole


def test_votes_of_many_denominators_add_up_exactly() -> None:
    node = Node((0,), None)
    votes = [Fraction(1, 3), Fraction(1, 6), Fraction(1, 2), Fraction(2, 6)]
    ballot = Ballot()
    for vote in votes:
        ballot.add(Candidate(node, 0.5, "1", 0, vote))
    (group,) = ballot.selected(SelectionRule.MAJORITY).groups
    assert group.votes == sum(votes)
