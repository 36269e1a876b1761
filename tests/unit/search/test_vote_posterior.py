"""A vote that is decided before all samples are in: the probability is exact, and the promised risk is kept."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.answers.canonical import canonical
from search.strategies.solutions.vote_posterior import UNSEEN, Rival, Standing, is_decided, outcomes

PUBLISHED = Path("benchmarks/results/published")
decided = cache(is_decided)
Sample = tuple[str | None, float]
"""The answer and the weight of a sample."""


def standings_of(samples: Sequence[Sample]) -> tuple[list[Standing], int]:
    """The standings of the samples' answers in the order of their first samples, and the number without an answer."""
    found: dict[str, Standing] = {}
    for answer, weight in samples:
        if answer is not None:
            count, before = found.get(answer, Standing(0, 0.0))
            found[answer] = Standing(count + 1, before + weight)
    return [*found.values()], sum(answer is None for answer, _ in samples)


def winner(samples: Sequence[Sample]) -> str | None:
    """The answer with the most weight, of equals the one that came first."""
    votes: dict[str, float] = {}
    for answer, weight in samples:
        if answer is not None:
            votes[answer] = votes.get(answer, 0.0) + weight
    return max(votes, key=lambda answer: votes[answer]) if votes else None


def stops_at(samples: Sequence[Sample], ends: Sequence[int], risk: float, weighted: bool) -> int:
    """The number of samples after which the vote is decided, looked at after each number in ``ends``."""
    for end in ends:
        standings, unread = standings_of(samples[:end])
        if decided(tuple(standings), unread, len(samples) - end, risk, weighted):
            return end
    return len(samples)


def all_drawn(counts: Mapping[str | None, int], missing: int) -> Iterator[tuple[list[str | None], Fraction]]:
    """Every sequence of missing answers with its probability, drawn one by one from a Polya urn."""
    for drawn in product(counts, repeat=missing):
        urn, chance = dict(counts), Fraction(1)
        for answer in drawn:
            chance *= Fraction(urn[answer], sum(urn.values()))
            urn[answer] += 1
        yield [*drawn], chance


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 3)), max_size=2),
    st.integers(0, 2),
    st.integers(0, 4),
    st.booleans(),
)
def test_the_probability_is_that_of_all_sequences_of_missing_samples(
    leader: int, rivals: list[tuple[int, int]], unread: int, missing: int, gains: bool
) -> None:
    counts = {"leader": leader, **{str(number): samples for number, (samples, _) in enumerate(rivals)}}
    urn = counts | ({None: unread} if unread else {})
    expected = sum(
        chance
        for drawn, chance in all_drawn(urn, missing)
        if all(
            drawn.count(str(number)) <= lead + gains * drawn.count("leader") for number, (_, lead) in enumerate(rivals)
        )
    )
    found = list(outcomes(leader, [Rival(*rival) for rival in rivals], unread, missing, gains))
    assert sum(wins for _, wins in found) == pytest.approx(float(expected), abs=1e-12)
    assert sum(chance for chance, _ in found) == pytest.approx(1.0)
    assert [chance for chance, _ in found] == sorted((chance for chance, _ in found), reverse=True)


def chance_to_win(seen: list[Sample], missing: int, weight: Callable[[str | None], float]) -> Fraction:
    """The probability that the leader among the samples seen still leads with the missing ones, weighted by answer."""
    leader = winner(seen)
    counts: dict[str | None, int] = {"unseen": UNSEEN}
    for answer, _ in seen:
        counts[answer] = counts.get(answer, 0) + 1
    return sum(
        (
            chance
            for drawn, chance in all_drawn(counts, missing)
            if winner([*seen, *((answer, weight(answer)) for answer in drawn)]) == leader
        ),
        Fraction(0),
    )


SEEN = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.just(1.0)), min_size=1, max_size=7)


@settings(deadline=None, max_examples=150)
@given(SEEN, st.integers(0, 4), st.floats(0.01, 0.5))
def test_a_vote_by_count_is_decided_if_the_leader_wins_with_that_probability(
    seen: list[Sample], missing: int, risk: float
) -> None:
    """Ties included: the answer that came first wins them."""
    leader = winner(seen)
    wins = chance_to_win(seen, missing, lambda answer: 1.0)
    if abs(float(wins) - (1 - risk)) > 1e-9:
        expected = leader is not None and wins >= 1 - risk
        assert is_decided(*standings_of(seen), missing, risk, weighted=False) == expected


WEIGHTED = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1, max_size=6
)


@settings(deadline=None, max_examples=150)
@given(WEIGHTED, st.integers(0, 3), st.booleans())
def test_without_a_risk_nothing_can_change_the_answer(seen: list[Sample], missing: int, weighted: bool) -> None:
    samples = seen if weighted else [(answer, 1.0) for answer, _ in seen]
    if not is_decided(*standings_of(samples), missing, 0.0, weighted):
        return
    weights = (0.0, 1.0) if weighted else (1.0,)
    others = [answer for answer in {answer for answer, _ in samples} if answer is not None]
    for rest in product([*product([*others, "new", None], weights)], repeat=missing):
        assert winner([*samples, *rest]) == winner(samples)


@settings(deadline=None, max_examples=100)
@given(WEIGHTED, st.integers(1, 3), st.floats(0.01, 0.5))
def test_a_weighted_vote_is_decided_if_the_worst_weights_change_it_rarely_enough(
    seen: list[Sample], missing: int, risk: float
) -> None:
    if not is_decided(*standings_of(seen), missing, risk, weighted=True):
        return
    leader = winner(seen)
    wins = chance_to_win(seen, missing, lambda answer: float(answer != leader))
    assert wins >= 1 - risk - 1e-9


def test_two_rivals_that_may_be_the_same_answer_are_one_where_nothing_is_risked() -> None:
    standings = [Standing(4, 4.0), Standing(2, 2.0), Standing(1, 1.0)]
    assert not is_decided(standings, 0, 1, 0.0, weighted=False)
    assert is_decided([Standing(5, 5.0), *standings[1:]], 0, 1, 0.0, weighted=False)


def test_without_an_answer_nothing_is_decided() -> None:
    assert not is_decided([], 16, 0, 0.5, weighted=False)
    assert not is_decided([], 4, 12, 0.5, weighted=False)


POOLS = {
    "one answer": lambda rng: [1.0],
    "two answers": lambda rng: [share := rng.random(), 1 - share],
    "few answers": lambda rng: [rng.gammavariate(0.5, 1) for _ in range(5)],
    "many answers": lambda rng: [rng.gammavariate(0.2, 1) for _ in range(40)],
    "a leader and many rare ones": lambda rng: [rng.uniform(5, 60)] + [1.0] * 40,
    "all answers differ": lambda rng: [1.0] * 500,
}
LEVEL = {"two equal answers": lambda rng: [0.5, 0.5], "three equal answers": lambda rng: [1.0] * 3}
"""The worst questions there are: whichever answer wins, it wins by chance."""
ROUNDS = {16: [4, 8, 12], 64: [4, *range(8, 64, 5)]}
TRIES = 200


def changed(family: str, n: int, risk: float, weighted: bool, tries: int = TRIES) -> float:
    """The share of votes of which the answer is another than that of all ``n``."""
    rng, others = random.Random(f"{family} {n}"), 0
    for _ in range(tries):
        shares = (POOLS | LEVEL)[family](rng)
        drawn = rng.choices(range(len(shares)), shares, k=n)
        samples: list[Sample] = [(str(each), rng.random() ** (1 + each % 3) if weighted else 1.0) for each in drawn]
        samples = [(None, weight) if rng.random() < 0.1 else (answer, weight) for answer, weight in samples]
        others += winner(samples[: stops_at(samples, ROUNDS[n], risk, weighted)]) != winner(samples)
    return others / tries


@pytest.mark.parametrize("family", POOLS)
@pytest.mark.parametrize(("n", "weighted"), [(16, False), (16, True), (64, False)])
def test_no_more_answers_change_than_promised(family: str, n: int, weighted: bool) -> None:
    tries = TRIES if n == 16 else 60  # votes of 64 samples take much longer
    assert changed(family, n, 0.0, weighted, tries) == 0
    for risk in (0.05, 0.2):
        assert changed(family, n, risk, weighted, tries) <= risk


@pytest.mark.parametrize("family", LEVEL)
@pytest.mark.parametrize("n", ROUNDS)
def test_where_all_answers_are_equally_frequent_not_many_more_change(family: str, n: int) -> None:
    """The promise is an average over questions: here only chance decides which answer wins."""
    assert changed(family, n, 0.0, weighted=False) == 0
    for risk in (0.05, 0.2):
        assert changed(family, n, risk, weighted=False) <= 2.5 * risk


@cache
def published() -> list[list[Sample]]:
    """The kept solutions of the published pair: 200 problems of 16 samples each, with their last rewards."""
    rewards = {}
    for line in (PUBLISHED / "test_rewards_head.jsonl").read_text().splitlines():
        row = json.loads(line)
        rewards[row["problem"], row["n"]] = row["rewards"]
    pools = []
    for line in (PUBLISHED / "test_solutions.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["n"] == 16:
            answers = [solution["answer"] for solution in row["solutions"]]
            spelled = [None if answer is None else canonical(answer) for answer in answers]
            weights = [steps[-1] for steps in rewards[row["problem"], 16]]
            pools.append([*zip(spelled, weights, strict=True)])
    return pools


@pytest.mark.parametrize("weighted", [False, True])
def test_no_more_answers_of_the_published_pair_change_than_promised(weighted: bool) -> None:
    pools = [[(answer, weight if weighted else 1.0) for answer, weight in pool] for pool in published()]
    assert len(pools) == 200
    for risk in (0.0, 0.05, 0.2):
        ends = [stops_at(pool, ROUNDS[16], risk, weighted) for pool in pools]
        others = sum(winner(pool[:end]) != winner(pool) for pool, end in zip(pools, ends, strict=True))
        assert others <= risk * len(pools)
        if risk and not weighted:
            assert sum(ends) < 0.9 * 16 * len(pools)
