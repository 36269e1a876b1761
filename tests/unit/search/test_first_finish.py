"""Votes of the shortest solutions: tokens decide which ones vote, and neither the clock nor the order of arrival."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from search_fakes import Bench, FakeGenerator, search

from search.answers.voting import Ballot, Candidate, SelectionRule
from search.ports import Child, ChildGroup, ExpandRequest
from search.run.report import SearchOutcome
from search.settings import parse_search
from search.snapshot import restore_tree, save_tree
from search.strategies.path_score import path_score
from search.tools.turns import Turns
from search.tree import Node, NodeStatus, SearchTree


class Decoding(FakeGenerator):
    """Writes all branches at once, token by token, some of them later or slower than others."""

    def __init__(self, order: int, variety: int | None) -> None:
        super().__init__(order, variety=variety)
        self.decoded = 0
        """Tokens that were decoded, those of branches that were ended included."""

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        self.requests.append(request)
        left: dict[Child, int] = {}
        for item in request.expansions:
            for branch in item.branches:
                left[self._write(request, item, branch)] = 0
        while left:
            await self._turns.take()
            before = sum(left.values())
            left = {
                child: min(tokens + self._rng.choice([0, 1, 1, 2, 5]), _tokens(child)) for child, tokens in left.items()
            }
            self.decoded += sum(left.values()) - before
            finished = tuple(child for child, tokens in left.items() if tokens == _tokens(child))
            left = {child: tokens for child, tokens in left.items() if child not in finished}
            least = min(left.values(), default=0) if request.counts_unfinished else 0
            if finished or least:
                yield ChildGroup(finished, unfinished_tokens=least)


def _tokens(child: Child) -> int:
    return sum(len(step.token_ids) for step in child.steps)


def vote(
    wanted: dict[str, Any], order: int, variety: int | None = None, tree: SearchTree | None = None
) -> tuple[Decoding, SearchOutcome]:
    async def main() -> tuple[Decoding, SearchOutcome]:
        bench = Bench(order)
        bench.generator = generator = Decoding(order, variety)
        outcome = await bench.search(wanted, **({} if tree is None else {"tree": tree}))
        assert outcome.tree.check_integrity() == []
        return generator, outcome

    return asyncio.run(main())


def last(node: Node) -> Node:
    while node.children:
        [node] = node.children.values()
    return node


def expected_of(tree: SearchTree, voters: int, rule: SelectionRule) -> tuple[str | None, float]:
    """The answer and the agreement of the shortest solutions of a tree in which all are written."""
    finished = [end for end in map(last, tree.root.children.values()) if tree.is_finished(end)]
    lengths = sorted(end.path_tokens for end in finished)
    if len(lengths) >= voters:
        finished = [end for end in finished if end.path_tokens <= lengths[voters - 1]]
    ballot: Ballot[Node] = Ballot()
    for end in sorted(finished, key=lambda end: (end.path_tokens, end.id)):
        answer = tree.answer_of(end)
        ballot.add(Candidate(end, path_score(end, "last"), answer, None if answer is None else int(answer)))
    found = ballot.selected(rule)
    return found.answer, found.agreement


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["self_consistency", "best_of_n"]),
    st.integers(1, 12),
    st.data(),
    st.sampled_from([None, 3]),
    st.booleans(),
    st.integers(1, 999),
)
def test_the_shortest_vote_whatever_comes_first(
    strategy: str, n: int, data: st.DataObject, variety: int | None, merge: bool, order: int
) -> None:
    voters = data.draw(st.integers(1, n))
    shared = {"strategy": strategy, "n": n, "seed": order, "max_path_tokens": 400}
    whole = search(shared | {"merge_siblings": False}, variety=variety)[1].tree
    rule = SelectionRule.MAJORITY if strategy == "self_consistency" else SelectionRule.WEIGHTED
    expected = expected_of(whole, voters, rule)
    wanted = shared | {"first_finish": voters, "merge_siblings": merge}
    outcomes = [vote(wanted, order, variety)[1], vote(wanted, order + 1, variety)[1]]
    outcomes.append(search(wanted, order, variety)[1])  # by a generator that does not say how many tokens there are
    for outcome in outcomes:
        assert (outcome.selection.answer, outcome.selection.agreement) == pytest.approx(expected)
        assert outcome.stop_reason == "finished"


def test_what_arrives_with_the_count_of_the_others_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the search passes on the event loop while it takes a group."""

    async def pass_on(turns: Turns) -> None:
        for _ in range(9):
            await asyncio.sleep(0)

    monkeypatch.setattr(Turns, "pass_on", pass_on)
    for seed in range(540, 560):
        shared = {"strategy": "self_consistency", "n": 9, "seed": seed, "max_path_tokens": 400}
        whole = search(shared | {"merge_siblings": False})[1].tree
        expected = expected_of(whole, 2, SelectionRule.MAJORITY)
        for order in (seed, seed + 1):
            outcome = vote(shared | {"first_finish": 2, "merge_siblings": False}, order)[1]
            assert (outcome.selection.answer, outcome.selection.agreement) == pytest.approx(expected)


def test_the_others_end_once_they_are_longer() -> None:
    wanted = {"strategy": "self_consistency", "n": 12, "max_path_tokens": 400}
    decoded = [[vote(wanted | own | {"seed": seed}, seed)[0].decoded for seed in range(6)] for own in ({}, FIRST)]
    assert sum(decoded[1]) < 0.7 * sum(decoded[0])
    generator, outcome = vote(wanted | FIRST | {"seed": 1}, 1)
    assert generator.requests[0].counts_unfinished
    ended = [node for node in outcome.tree.nodes if node.status is NodeStatus.PRUNED]
    assert ended
    assert outcome.cost.generated_tokens < generator.decoded
    assert not vote(wanted, 1)[0].requests[0].counts_unfinished


FIRST = {"first_finish": 3}


@pytest.mark.parametrize("failed_after", [0, 4])
def test_a_search_that_was_interrupted_has_the_same_voters(failed_after: int) -> None:
    wanted = {"strategy": "self_consistency", "n": 10, "seed": 3, **FIRST, "max_path_tokens": 400}
    _, undisturbed = vote(wanted, 1)

    async def interrupted() -> SearchTree:
        bench, tree = Bench(2), SearchTree()
        bench.generator.stall_after = failed_after
        searching = asyncio.create_task(bench.search(wanted, tree=tree))
        await bench.generator.stalled.wait()
        saved = save_tree(tree)
        searching.cancel()
        await asyncio.wait([searching])
        return restore_tree(saved)

    _, resumed = vote(wanted, 5, tree=asyncio.run(interrupted()))
    assert resumed.selection.answer == undisturbed.selection.answer
    assert resumed.selection.agreement == undisturbed.selection.agreement
    assert resumed.text == undisturbed.text


@pytest.mark.parametrize(
    ("given", "says"),
    [({"first_finish": 0}, "1"), ({"first_finish": 9}, "8"), ({"first_finish": 4, "risk": 0.1}, "risk")],
)
def test_what_cannot_be_is_refused_by_its_path(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_search({"strategy": "self_consistency", "n": 8} | given)
    [error] = caught.value.errors()
    assert error["loc"] == ("first_finish",)
    assert says in error["msg"]
