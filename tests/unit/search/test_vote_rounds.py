"""Votes in rounds: what is written, and when the search stops, follows from the solutions alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from search_fakes import Bench, FakeGenerator, search

from search.errors import LimitReached
from search.ports import AheadSamples, ChildGroup, ExpandRequest
from search.run.report import RoundStarted, SearchCost, SearchOutcome
from search.settings import parse_search
from search.snapshot import tree_as_json
from search.strategies.solutions import whole_solutions
from search.strategies.solutions.best_of_n import BestOfN
from search.strategies.solutions.self_consistency import SelfConsistency
from search.tree import SearchTree, Step, StepEnd

STRATEGIES = ("self_consistency", "best_of_n")


def written(answers: Sequence[str | None], weights: Sequence[float] | None = None) -> SearchTree:
    """A tree of solutions with these answers, each of one step, with these rewards."""
    tree = SearchTree(7)
    tree.merges_siblings = True
    for node, answer in zip(tree.request(tree.root, len(answers)), answers, strict=True):
        text = "no idea" if answer is None else rf"\boxed{{{answer}}}"
        tree.write(node, Step((1,), text, StepEnd.END_OF_SEQUENCE), ends=True)
        tree.complete(node, None if weights is None else weights[node.id[0]])
    return tree


def next_round(strategy: SelfConsistency | BestOfN, tree: SearchTree) -> int:
    """The number of solutions that the strategy requests next."""
    return sum(expansion.count for expansion in strategy.select(tree))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(STRATEGIES),
    st.integers(1, 24),
    st.sampled_from([0.0, 0.05, 0.2, 0.5]),
    st.lists(st.integers(1, 6), max_size=5),
    st.integers(0, 9),
    st.sampled_from([None, 1, 2, 4]),
    st.booleans(),
    st.sampled_from(["weighted", "majority"]),
)
def test_what_is_written_does_not_depend_on_the_order_of_arrival(
    strategy: str, n: int, risk: float, rounds: list[int], seed: int, variety: int | None, merge: bool, rule: str
) -> None:
    """And it is the beginning of what is written without a risk."""
    shared = {"strategy": strategy, "n": n, "seed": seed, "merge_siblings": merge, "max_path_tokens": 60}
    shared |= {"selection": rule} if strategy == "best_of_n" else {}
    votes = shared | {"risk": risk} | ({"rounds": rounds} if rounds else {})
    first, found = search(votes, order=0, variety=variety)
    other, again = search(votes, order=1, variety=variety)
    assert tree_as_json(other.tree) == tree_as_json(first.tree)
    assert again.selection.answer == found.selection.answer
    whole = search(shared, variety=variety)[0].tree
    number = first.tree.root.asked
    assert {node.id: node.step for node in first.tree.nodes} == {
        node.id: node.step for node in whole.nodes if node.id[0] < number
    }
    assert [event.branches for event in first.events if isinstance(event, RoundStarted)] == [
        len(request.expansions[0].branches) for request in first.generator.requests
    ]
    if not risk:
        assert found.selection.answer == search(shared, variety=variety)[1].selection.answer


@pytest.mark.parametrize(
    ("n", "rounds", "ends"),
    [
        (16, [], [4, 8, 12, 16]),
        (64, [], [4, *range(8, 64, 5), 64]),
        (200, [], [4, 8, *range(16, 200, 16), 200]),
        (256, [], [4, 8, 16, *range(32, 256, 21), 256]),
        (6, [], [4, 6]),
        (1, [], [1]),
        (16, [4, 4, 8], [4, 8, 16]),
        (16, [3], [3, 16]),
        (16, [20], [16]),
        (16, [12, 12], [12, 16]),
    ],
)
def test_rounds_end_with_all_solutions(n: int, rounds: list[int], ends: list[int]) -> None:
    """All answers differ, so that nothing is decided before."""
    strategy = SelfConsistency.model_validate({"n": n, "risk": 0.05} | ({"rounds": rounds} if rounds else {}))
    tree, found = SearchTree(7), []
    while count := next_round(strategy, tree):
        found.append(tree.root.asked + count)
        tree = written([str(each) for each in range(found[-1])])
    assert found == ends


def test_without_a_risk_all_are_written_at_once() -> None:
    assert next_round(SelfConsistency(n=16), SearchTree(7)) == 16


@pytest.mark.parametrize(
    ("answers", "risk", "more"),
    [
        (["5"] * 4, 0.05, 0),
        (["5"] * 4, 0.01, 4),
        (["5"] * 4, 0.0, 4),
        (["5", "5", "6", "5"], 0.05, 4),
        (["5", "5", "6", "5"], 0.2, 0),
        (["5"] * 8, 0.0, 4),
        (["5"] * 9 + ["6"] * 3, 0.0, 0),
        (["5"] * 9 + ["6", "7", "8"], 0.0, 0),
        (["5"] * 8 + ["6", "7", "8", "9"], 0.0, 4),
        ([None] * 4, 0.5, 4),
        (["5", None, None, None], 0.2, 4),
        ([None, "5", "5", "5"], 0.2, 0),
    ],
)
def test_the_next_round_is_requested_unless_the_vote_is_decided(
    answers: list[str | None], risk: float, more: int
) -> None:
    """Solutions of the same text are one node that counts for all of them."""
    assert next_round(SelfConsistency(n=16, risk=risk), written(answers)) == more


def test_a_vote_is_decided_only_at_the_end_of_a_round() -> None:
    """A tree of fewer solutions, such as one that was saved, goes on to the end of its round."""
    assert next_round(SelfConsistency(n=16, risk=0.5), written(["5"] * 3)) == 1
    assert next_round(SelfConsistency(n=16, risk=0.5), written(["5"] * 4)) == 0


def test_solutions_that_were_given_back_are_not_waited_for() -> None:
    tree = written(["5"] * 5 + ["6"])
    tree.give_back(tree.request(tree.root, 6))
    assert tree.root.asked == 12
    assert next_round(SelfConsistency(n=16, risk=0), tree) == 4, "5 against 1 and 4 missing"
    assert next_round(SelfConsistency(n=15, rounds=(12,), risk=0), tree) == 0, "5 against 1 and 3 missing"


def test_a_weighted_vote_is_decided_by_what_the_missing_weights_can_still_do() -> None:
    strategy = BestOfN(n=16, rounds=(8, 4), risk=0.0)
    assert next_round(strategy, written(["5"] * 12, [0.5] * 12)) == 0, "6.0 against 4 missing"
    assert next_round(strategy, written(["5"] * 12, [0.25] * 12)) == 4, "3.0 against 4 missing"
    risky = BestOfN(n=16, rounds=(8, 4), risk=0.05)
    assert next_round(risky, written(["5"] * 8, [0.9] * 8)) == 0, "all 8 missing would have to be another answer's"
    assert next_round(risky, written(["5"] * 8, [0.1] * 8)) == 4, "a single one suffices"
    by_count = BestOfN(n=16, rounds=(8, 4), risk=0.05, selection="majority")
    assert next_round(by_count, written(["5"] * 8, [0.1] * 8)) == 0


@pytest.mark.parametrize("weight", [-0.5, 1.5])
def test_weights_without_a_bound_never_stop_a_vote(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_solutions, "path_score", lambda node, how: weight if node.id == (3,) else 1.0)
    tree = written(["5"] * 3 + ["6"] + ["5"] * 8, [0.5] * 12)
    assert next_round(BestOfN(n=16, risk=0.5), tree) == 4


class Ahead(FakeGenerator):
    """Says with the last solution of a call that all later ones are begun, and that they cost two tokens each."""

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        missing = sum(len(item.branches) for item in request.expansions)
        if not missing:
            yield ChildGroup((), None, 2 * self.begun)
        async for group in super().expand(request):
            missing -= len(group.children)
            self.begun = request.ahead.number if isinstance(request.ahead, AheadSamples) and not missing else 0
            yield group._replace(samples_ahead=self.begun)


async def ahead_of(given: dict[str, Any]) -> tuple[list[ExpandRequest], SearchOutcome]:
    bench = Bench(variety=1)
    bench.generator = Ahead(variety=1)
    outcome = await bench.search({"strategy": "self_consistency", "n": 16, "max_path_tokens": 60} | given)
    return bench.generator.requests, outcome


async def test_a_generator_is_told_which_solutions_later_rounds_may_ask_for() -> None:
    requests, outcome = await ahead_of({"risk": 0.0, "rounds": [4, 4, 2], "seed": 7})
    assert [request.ahead for request in requests[:3]] == [
        AheadSamples(7, 4, 12, 60),
        AheadSamples(7, 8, 8, 60),
        AheadSamples(7, 10, 6, 60),
    ]
    assert outcome.cost.expand_calls == 3, "nine equal answers, and at most six others"


async def test_what_was_written_ahead_of_a_decided_vote_is_given_up_and_counted() -> None:
    requests, outcome = await ahead_of({"risk": 0.5})
    assert [len(request.expansions) for request in requests] == [1, 0]
    assert outcome.cost.unused_tokens == 2 * 12


@pytest.mark.parametrize("ends", ["cancelled", "out of time"])
async def test_what_was_written_ahead_is_given_up_however_the_search_ends_between_two_rounds(ends: str) -> None:
    """While the reward model scores a round, the generator has no call that the end of the search could cancel."""
    bench, cost = Bench(variety=1), SearchCost()
    bench.generator, bench.scorer.stall = Ahead(variety=1), True
    given = {"strategy": "best_of_n", "n": 16, "risk": 0.5, "max_path_tokens": 60}
    given |= {"budget": {"seconds": 0.2}} if ends == "out of time" else {}
    searching = asyncio.create_task(bench.search(given, cost=cost))
    await bench.scorer.stalled.wait()
    if ends == "cancelled":
        searching.cancel()
    with pytest.raises((asyncio.CancelledError, LimitReached)):
        await searching
    assert [len(request.expansions) for request in bench.generator.requests] == [1, 0]
    assert cost.unused_tokens == 2 * 12


async def test_after_the_last_round_nothing_is_left_to_give_up() -> None:
    requests, outcome = await ahead_of({"risk": 0.0, "rounds": [4]})
    assert [request.ahead for request in requests] == [AheadSamples(7, 4, 12, 60), AheadSamples(7, 16, 0, 60)]
    assert outcome.cost.unused_tokens == 0


async def test_without_rounds_no_solutions_are_written_ahead() -> None:
    requests, _ = await ahead_of({})
    assert [request.ahead for request in requests] == [None]


async def test_no_more_solutions_are_written_ahead_than_the_budget_has_tokens_for() -> None:
    requests, _ = await ahead_of({"risk": 0.0, "rounds": [4], "budget": {"tokens": 60 * 7 + 59}})
    assert requests[0].ahead == AheadSamples(7, 4, 3, 60)


@pytest.mark.parametrize(
    ("given", "loc", "says"),
    [
        ({"risk": -0.1}, ("risk",), "0"),
        ({"risk": 0.6}, ("risk",), "0.5"),
        ({"rounds": [4]}, ("rounds",), "needs `risk`"),
        ({"risk": 0.1, "rounds": [0]}, ("rounds", 0), "1"),
        ({"risk": 0.1, "rounds": [4, 257]}, ("rounds", 1), "256"),
        ({"risk": 0.1, "rounds": [True]}, ("rounds", 0), "integer"),
        ({"risk": 0.1, "rounds": [1] * 257}, ("rounds",), "256"),
        ({"strategy": "best_of_n", "risk": 0.1, "selection": "naive"}, ("risk",), "majority"),
        ({"strategy": "dvts", "risk": 0.1}, ("risk",), "whole solutions"),
        ({"early_stop": True}, ("early_stop",), "risk"),
        ({"margin": 0.5}, ("margin",), "risk"),
        ({"strategy": "best_of_n", "margin_after": 4}, ("margin_after",), "risk"),
    ],
)
def test_what_cannot_be_is_refused_by_its_path(given: dict[str, Any], loc: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_search({"strategy": "self_consistency", "n": 16} | given)
    [error] = caught.value.errors()
    assert error["loc"] == loc
    assert says in error["msg"]
