"""What the reward models of two pairs are worth, by their cards, beside what the test problems say; and whether the
generator's own confidence would do.

    python -m benchmarks.reward_card pool
    python -m benchmarks.reward_card report --gsm8k DIRECTORY --keep

`pool` samples and scores solutions of the embedded pair, and goes on where it ended before; those of the published pair
are kept by `benchmarks.published`.
"""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer
from rich.console import Console

from benchmarks.engines import solve_all
from benchmarks.published.__main__ import TRAIN_PROBLEMS, confidence_file, pools_of
from benchmarks.published.problems import chosen_problems
from benchmarks.published.report import TEST_PROBLEMS
from benchmarks.published.rows import RowFile
from benchmarks.record import RESULTS, claim, show_claims, write_result
from cluster.evaluation.card_fit import (
    FREQUENT,
    WRONG,
    Pool,
    TooFewProblems,
    VoteSample,
    auc_within,
    fit_card,
    gain_over,
    kinds_of,
    reward_auc,
    voted,
)
from cluster.evaluation.loop import problem_seed
from cluster.evaluation.prm_tables import card_table
from deployments.embedded.problems import Problem, Split, draw_problems
from search.answers.equivalence import AnswerMatcher
from search.answers.voting import SelectionRule
from search.reward_card import RewardCard
from search.run.runner import run_search
from search.settings import parse_search
from search.strategies.path_score import Aggregation
from search.tree import Node, SearchTree

if TYPE_CHECKING:
    from benchmarks.memoized import MemoizedModels

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
console = Console(width=120)
ROWS = RESULTS / "embedded"
SEED = 62
N = 16
PROBLEMS = {Split.VALIDATION: 200, Split.TEST: 300}
"""The card is fitted on the first and judged on the second."""
IN_FLIGHT = 16
DIGITS = 5
TRAIN, TEST, EMBEDDED, HEAD = "train", "test", "embedded", "head"
Sure: TypeAlias = tuple[Pool, Sequence[Mapping[str, float]]]
"""A problem's solutions, and the figures of the generator's confidence in each."""
Gsm8k = Annotated[Path, typer.Option(help="Directory with GSM8K's train.jsonl and test.jsonl.")]
Keep = Annotated[bool, typer.Option(help="Write the figures to benchmarks/results.")]
CardFile = Annotated[Path | None, typer.Option(help="Write the embedded pair's card to this file.")]
Minutes = Annotated[float, typer.Option(min=0.1, help="Ends after this time, whatever is missing then.")]


class Pair(NamedTuple):
    """The scored solutions of a generator."""

    generator: str
    source: str
    """Where the problems are from that the card is fitted on."""
    fitted_on: list[Pool]
    test: list[Pool]
    sure: list[Sure]
    """Of those test problems whose figures are known."""


@app.command()
def pool(minutes: Minutes = 60.0) -> None:
    """Samples the embedded generator's solutions, and has their steps scored."""
    from benchmarks.memoized import MemoizedModels  # imports torch

    ends_at = time.monotonic() + 60 * minutes

    async def run() -> None:
        matcher = AnswerMatcher()
        await matcher.start()
        models = MemoizedModels(matcher)
        try:
            for split, count in PROBLEMS.items():
                rows = RowFile(ROWS / f"{split}_pool.jsonl", ("problem",))

                async def one(problem: Problem, _seed: int, rows: RowFile = rows) -> None:
                    if (problem.unique_id,) not in rows and time.monotonic() < ends_at:
                        rows.append(await _row(problem, models))

                await solve_all(one, list(islice(draw_problems(split, SEED), count)), IN_FLIGHT, SEED)
        finally:
            matcher.close()

    asyncio.run(run())


async def _row(problem: Problem, models: "MemoizedModels") -> dict[str, Any]:
    """The solutions of a problem, those of the same text once, and which of them each sample is."""
    given = {"strategy": "best_of_n", "n": N, "merge_siblings": False, "logprobs": True}
    settings = parse_search(given | {"seed": problem_seed(SEED, problem.unique_id)})
    with models.problem(problem.text) as memo:
        outcome = await run_search(problem.text, memo.prompt, settings, memo.environment, search_id=problem.unique_id)
    solutions: dict[str, dict[str, Any]] = {}
    drawn: list[int] = []
    for end in sorted(outcome.tree.terminals, key=lambda node: node.id):
        solutions.setdefault(end.text, _solution(end, outcome.tree, problem))
        drawn.append([*solutions].index(end.text))
    return {"problem": problem.unique_id, "solutions": [*solutions.values()], "drawn": drawn}


def _solution(end: Node, tree: SearchTree, problem: Problem) -> dict[str, Any]:
    answer = tree.answer_of(end)
    logprobs = [logprob for step in end.steps for logprob in step.token_logprobs or ()]
    return {
        "rewards": [round(reward, DIGITS) for reward in end.rewards],
        "answer": answer,
        "correct": answer == problem.answer,
        "logprob": round(statistics.fmean(logprobs), DIGITS),
        "lowest_token": round(min(logprobs), DIGITS),
    }


@app.command()
def report(gsm8k: Gsm8k, keep: Keep = False, card: CardFile = None) -> None:
    """Fits both cards, and compares the votes that they recommend on the test problems."""
    pairs = asyncio.run(_pairs(gsm8k))
    figures: dict[str, Any] = {"claims": []}
    for name, pair in pairs.items():
        fitted = fit_card(pair.fitted_on, pair.generator, pair.source)
        console.print(card_table(fitted), fitted.verdict)
        judged = _judged(fitted, pair.test)
        figures[name] = {
            "card": fitted.model_dump(mode="json"),
            "test": judged,
            "confidence": _confidence(pair.sure) if pair.sure else None,
        }
        figures["claims"] += _claims(name, fitted, judged)
        if card is not None and name == EMBEDDED:
            card.write_text(fitted.model_dump_json(indent=2) + "\n")
    console.print_json(json.dumps({name: figures[name]["confidence"] for name in pairs}))
    show_claims(console, figures["claims"])
    if keep:
        console.print(f"kept in {write_result('reward_card', figures)}")


def _claims(name: str, card: RewardCard, judged: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The card says of the fitted problems what the others say, and its vote is no worse than today's."""
    gains = [judged["over_majority"][str(vote)] for vote in card.votes if vote.selection is SelectionRule.WEIGHTED]
    true = max(gain["low"] for gain in gains) > 0
    high = judged["card_over_last"]["high"]
    return [
        claim(f"{name}: the card recommends rewards", card.helps, f"as the test problems: {true}", card.helps == true),
        claim(f"{name}: the card's vote less one by last rewards, upper bound", high, ">= 0", high >= 0),
    ]


async def _pairs(gsm8k: Path) -> dict[str, Pair]:
    matcher = AnswerMatcher()
    await matcher.start()
    try:
        test = await pools_of(TEST, chosen_problems(gsm8k, TEST, TEST_PROBLEMS), HEAD, matcher)
        train = await pools_of(TRAIN, chosen_problems(gsm8k, TRAIN, TRAIN_PROBLEMS), HEAD, matcher)
    finally:
        matcher.close()
    read = {row["problem"]: row["figures"] for row in confidence_file().rows.values()}
    samples = {
        split: {
            name: [VoteSample(each.rewards, each.correct, each.group) for each in pool] for name, pool in pools.items()
        }
        for split, pools in ((TRAIN, train), (TEST, test))
    }
    published = Pair(
        "Qwen2.5-Coder-0.5B-Instruct",
        f"GSM8K, {len(train)} problems of the training split",
        [*samples[TRAIN].values()],
        [*samples[TEST].values()],
        [(pool, read[name]) for name, pool in samples[TEST].items() if name in read],
    )
    return {"published": published, EMBEDDED: _embedded()}


def _embedded() -> Pair:
    pools: dict[Split, list[Pool]] = {}
    sure: list[Sure] = []
    for split in PROBLEMS:
        pools[split] = []
        for row in RowFile(ROWS / f"{split}_pool.jsonl", ("problem",)).rows.values():
            drawn = [row["solutions"][index] for index in row["drawn"]]
            pool = [VoteSample(tuple(each["rewards"]), each["correct"], each["answer"]) for each in drawn]
            pools[split].append(pool)
            if split is Split.TEST:
                sure.append((pool, [{name: each[name] for name in ("logprob", "lowest_token")} for each in drawn]))
    return Pair(
        "banyan-arithmetic",
        f"{len(pools[Split.VALIDATION])} validation problems of seed {SEED}",
        pools[Split.VALIDATION],
        pools[Split.TEST],
        sure,
    )


def _confidence(sure: Sequence[Sure]) -> dict[str, Any]:
    """For each figure of the generator's confidence, how often it tells a right solution from a wrong one of its
    problem, and the votes that it weighs or filters, over the majority of the same problems."""
    pools = [pool for pool, _ in sure]
    kinds = [kinds_of(pool) for pool in pools]
    majority = [voted(pool, SelectionRule.MAJORITY, Aggregation.LAST) for pool in pools]
    found: dict[str, Any] = {"problems": len(pools), "majority": round(statistics.fmean(majority), 4)}
    for name in sure[0][1][0]:
        values = [[each[name] for each in rows] for _, rows in sure]
        every = [value for row in values for value in row]
        mean, spread = statistics.fmean(every), statistics.pstdev(every)
        scored = [
            [
                each._replace(rewards=(1 / (1 + math.exp(-(value - mean) / spread)),))
                for each, value in zip(pool, row, strict=True)
            ]
            for pool, row in zip(pools, values, strict=True)
        ]
        kept = [
            voted(
                [each for each in pool if each.rewards[0] >= statistics.median(one.rewards[0] for one in pool)],
                SelectionRule.MAJORITY,
                Aggregation.LAST,
            )
            for pool in scored
        ]
        figures: dict[str, Any] = {
            "auc_within_problems": auc_within(values, kinds, WRONG),
            "against_the_most_frequent_wrong_answer": auc_within(values, kinds, (FREQUENT,)),
            "surer_half": gain_over(majority, kept).model_dump(),
        }
        with suppress(TooFewProblems):
            for vote in fit_card(scored).votes:
                if vote.aggregation is Aggregation.LAST:
                    figures["calibrated" if vote.vote_weights else str(vote.selection)] = vote.gain.model_dump()
        found[name] = figures
    return found


def _judged(card: RewardCard, pools: Sequence[Pool]) -> dict[str, Any]:
    """The votes of a card on problems that it was not fitted on, over the majority and over today's vote."""
    majority = [voted(pool, SelectionRule.MAJORITY, Aggregation.LAST) for pool in pools]
    last = [voted(pool, SelectionRule.WEIGHTED, Aggregation.LAST) for pool in pools]
    right = {
        str(vote): [voted(pool, vote.selection, vote.aggregation, vote.vote_weights) for pool in pools]
        for vote in card.votes
    }
    chosen = right[str(card.best)] if card.helps else majority
    return {
        "problems": len(pools),
        "majority": statistics.fmean(majority),
        "card_over_last": gain_over(last, chosen).model_dump(),
        "over_majority": {name: gain_over(majority, each).model_dump() for name, each in right.items()},
        "over_last": {name: gain_over(last, each).model_dump() for name, each in right.items()},
        "knows": reward_auc(pools, card.knows.aggregation).model_dump(),
    }


if __name__ == "__main__":
    app()
