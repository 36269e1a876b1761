"""What `patience` saves in beam searches, and how many answers it changes.

    python -m benchmarks.exits
    python -m benchmarks.exits --pair heavy --patience 2

Each problem is searched without `patience` and with it, under the same seed. The multiple is the one of
`MULTIPLES` that changes no answer of the validation problems and needs the fewest tokens there, the largest of several;
its figures are those of test problems. The embedded pair
runs without engines (`benchmarks.memoized`), the heavy pair, which writes the same texts, on engines in this process:
give it the multiple that the embedded pair has chosen. Every search is kept in a file as soon as it is done, and a
second run goes on with that.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console

from benchmarks.accuracy.pairs import paired_difference
from benchmarks.engines import engines_of, solve_all
from benchmarks.memoized import MemoizedModels, ProblemMemo
from benchmarks.model_pairs import PairName
from benchmarks.record import claim, show_claims, write_result
from cluster.evaluation.loop import problem_seed
from cluster.evaluation.statistics import wilson
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.startup.environment import set_environment
from search.answers.equivalence import AnswerMatcher
from search.run.environment import are_same
from search.run.runner import run_search
from search.settings import parse_search

SEED = 62
SEARCH = {"strategy": "beam_search", "n": 16}
MULTIPLES = (1.25, 1.5, 2.0, 3.0, 4.0, 100.0)
"""Values of `patience` to choose from. With the last one, only paths that repeat themselves end."""
MAX_CHANGED = 0.01
"""Largest share of answers that may change."""
console = Console(stderr=True)


class Searched(NamedTuple):
    """One search, as a line of the file."""

    split: Split
    problem: str
    patience: float | None
    answer: str | None
    right: bool
    tokens: int
    wandering: int


class Searches:
    """All searches so far, also those of earlier runs."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._done = {(each.problem, each.patience): each for each in (Searched(*json.loads(line)) for line in lines)}

    def add(self, searched: Searched) -> None:
        self._done[searched.problem, searched.patience] = searched
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(searched) + "\n")

    def missing(self, problem: Problem, sides: Iterable[float | None]) -> list[float | None]:
        return [side for side in sides if (problem.unique_id, side) not in self._done]

    def of(self, problems: Iterable[Problem], patience: float | None) -> list[Searched]:
        return [self._done[problem.unique_id, patience] for problem in problems]


class Models:
    """What gives a problem its environment: the memoized models, or engines."""

    def __init__(self, memoized: MemoizedModels | None, prompt: Any = None, environment: Any = None) -> None:
        self._memoized, self._prompt, self._environment = memoized, prompt, environment

    async def search(self, split: Split, problem: Problem, sides: Sequence[float | None], done: Searches) -> None:
        if self._memoized is None:
            await self._search(split, problem, sides, ProblemMemo(self._prompt(problem.text), self._environment), done)
        else:
            with self._memoized.problem(problem.text) as memo:
                await self._search(split, problem, sides, memo, done)

    async def _search(
        self, split: Split, problem: Problem, sides: Sequence[float | None], memo: ProblemMemo, done: Searches
    ) -> None:
        seed = problem_seed(SEED, problem.unique_id)
        for side in sides:
            settings = parse_search(SEARCH | {"seed": seed} | ({} if side is None else {"patience": side}))
            search_id = f"{problem.unique_id}:{side}"
            found = await run_search(problem.text, memo.prompt, settings, memo.environment, search_id=search_id)
            answer, cost = found.selection.answer, found.cost
            right = answer is not None and await are_same(memo.environment.matcher, problem.answer, answer)
            tokens, wandering = cost.generated_tokens, cost.wandering_paths
            done.add(Searched(split, problem.unique_id, side, answer, right, tokens, wandering))


@asynccontextmanager
async def models_of(pair: PairName) -> AsyncIterator[Models]:
    if pair is PairName.EMBEDDED:
        import torch

        torch.set_num_threads(1)
        matcher = AnswerMatcher()
        await matcher.start()
        try:
            yield Models(MemoizedModels(matcher))
        finally:
            matcher.close()
        return
    generator, prm = pair.models
    given = {"generator": {"model": generator}, "prm": {"model": prm}, "cache": {"enabled": False}}
    async with engines_of(AppConfig.model_validate(given)) as engines:
        yield Models(None, engines.prompt, engines.environment)


def compared(before: Sequence[Searched], after: Sequence[Searched]) -> dict[str, Any]:
    """Both sides on the same problems."""
    changed = sum(one.answer != other.answer for one, other in zip(before, after, strict=True))
    low, high = wilson(changed, len(before))
    paired = paired_difference([each.right for each in before], [each.right for each in after])
    tokens = [np.array([each.tokens for each in side]) for side in (before, after)]
    return {
        "problems": len(before),
        "changed": changed,
        "changed_interval": [round(low, 4), round(high, 4)],
        "right": [sum(each.right for each in side) for side in (before, after)],
        "difference_interval": [round(paired.low, 4), round(paired.high, 4)],
        "searches_with_fewer_tokens": int((tokens[1] < tokens[0]).sum()),
        "wandering_paths": sum(each.wandering for each in after),
        "tokens": {
            "mean": [round(float(side.mean()), 1) for side in tokens],
            "p50": [int(np.percentile(side, 50)) for side in tokens],
            "p95": [int(np.percentile(side, 95)) for side in tokens],
            "p100": [int(side.max()) for side in tokens],
        },
    }


async def measure(
    pair: PairName, done: Searches, validation: int, test: int, in_flight: int, patience: float | None
) -> tuple[float, dict[str, Any], dict[str, Any]]:
    """Chooses the multiple, unless ``patience`` names it, and compares the test problems. Returns the multiple, and the
    comparisons of the validation problems by multiple and of the test problems."""
    async with models_of(pair) as models:

        async def searched(split: Split, number: int, sides: Sequence[float | None]) -> list[Problem]:
            problems = list(islice(draw_problems(split, SEED), number))

            async def search(problem: Problem, _: int) -> None:
                if missing := done.missing(problem, sides):
                    await models.search(split, problem, missing, done)

            await solve_all(search, problems, in_flight, SEED)
            console.print(f"{number} {split} problems, patience {', '.join(map(str, sides))}")
            return problems

        chosen_by: dict[str, Any] = {}
        if patience is None:
            problems = await searched(Split.VALIDATION, validation, (None, *MULTIPLES))
            before = done.of(problems, None)
            chosen_by = {str(multiple): compared(before, done.of(problems, multiple)) for multiple in MULTIPLES}
            patience = chosen(chosen_by)
        problems = await searched(Split.TEST, test, (None, patience))
        return patience, chosen_by, compared(done.of(problems, None), done.of(problems, patience))


def chosen(by_multiple: dict[str, Any]) -> float:
    """Of the multiples that change no answer the one with the fewest tokens; on a tie the largest, which ends least."""
    harmless = [each for each in MULTIPLES if not by_multiple[str(each)]["changed"]]
    return min(harmless, key=lambda each: (by_multiple[str(each)]["tokens"]["mean"][1], -each), default=MULTIPLES[-1])


def claims_of(pair: PairName, test: dict[str, Any]) -> Iterable[dict[str, Any]]:
    share = round(test["changed"] / test["problems"], 4)
    yield claim(f"{pair}: share of answers changed", share, f"<= {MAX_CHANGED}", share <= MAX_CHANGED)
    for name in ("p95", "p100"):
        before, after = test["tokens"][name]
        yield claim(f"{pair}: tokens, {name}, with exits", after, f"<= {before}", after <= before)


def main(
    pair: PairName = PairName.EMBEDDED,
    validation: Annotated[int, typer.Option(min=1, max=2000, help="Problems that choose the multiple.")] = 200,
    test: Annotated[int, typer.Option(min=1, max=2000, help="Problems that are reported.")] = 300,
    in_flight: Annotated[int, typer.Option(min=1, max=64)] = 16,
    patience: Annotated[float | None, typer.Option(min=1.0, max=100.0, help="The multiple; unset: chosen.")] = None,
    rows: Annotated[Path | None, typer.Option(help="File of all searches; exits-PAIR.jsonl if unset.")] = None,
) -> None:
    set_environment()
    done = Searches(rows or Path(f"exits-{pair}.jsonl"))
    multiple, by_multiple, found = asyncio.run(measure(pair, done, validation, test, in_flight, patience))
    claims = list(claims_of(pair, found))
    figures = {"search": SEARCH, "seed": SEED, "pair": pair, "patience": multiple}
    path = write_result(f"exits_{pair}", figures | {"validation": by_multiple, "test": found, "claims": claims})
    show_claims(console, claims)
    console.print(f"patience {multiple}; kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
