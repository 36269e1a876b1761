"""What running programs is worth: HumanEval with a published model, eight samples of a problem.

    python -m benchmarks.code sample --humaneval FILE --minutes 60     # goes on where it ended before
    python -m benchmarks.code report --humaneval FILE --keep

`sample` writes the samples to a file of rows. `report` grades them by each record's test, which nothing else reads, and
compares what is picked from the same eight: one of them, the one that passes the most examples of the docstring
(``best_of_n`` with ``selection: naive`` and the reward family ``execution``), the largest group that does the same on
them (``self_consistency``), both (``weighted``), and the best of all. Each rule picks as the served application does,
once for each of the eight orders that begin with another sample, so that a tie is no luck.
"""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from benchmarks.published.engines import CONTEXT_TOKENS, MAX_SOLUTION_TOKENS, generator_settings, started_generator
from benchmarks.published.rows import Row, RowFile
from benchmarks.published.sampling import MAX_STEPS, SEED, NoScorer, in_parallel
from benchmarks.record import RESULTS, claim, show_claims, write_result
from cluster.evaluation.code_test import CodeTest, code_test, grading_slots
from cluster.evaluation.loop import problem_seed
from cluster.evaluation.paired_bootstrap import Difference, paired_bootstrap
from deployments.engines.rewards.execution import ExecutionScorer, ExecutionSettings
from deployments.service.code_answers import CodeAnswers
from search.answers.checks import Checks, checks_of
from search.answers.code_answer import code_answer
from search.answers.voting import Ballot, Candidate, SelectionRule
from search.ports import ScoreItem, ScoreRequest
from search.run.environment import SearchEnvironment
from search.run.runner import run_search
from search.settings import parse_search
from search.tree import SearchTree

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
console = Console(width=120)
ROWS = RESULTS / "code"
N = 8
SAMPLING = {"temperature": 0.8, "top_p": 0.95}
GENERATOR = ".models/Qwen2.5-Coder-0.5B-Instruct"
PROMPT = "Complete this function. Answer with the whole function in one ```python block.\n\n```python\n{prompt}```"
ONE, EXAMPLES, BEHAVIOR, WEIGHTED, POOL = "one sample", "by examples", "by behavior", "by both", "pool"
PICKED = {EXAMPLES: SelectionRule.NAIVE, BEHAVIOR: SelectionRule.MAJORITY, WEIGHTED: SelectionRule.WEIGHTED}
ASKED = 0.12
"""What is asked: picked by examples above one sample, over all problems."""
HumanEval = Annotated[Path, typer.Option(help="HumanEval.jsonl.gz.")]
Number = Annotated[int, typer.Option("--problems", min=1, help="Number of problems, from the first.")]


class CodeProblem(NamedTuple):
    """A record of HumanEval."""

    id: str
    prompt: str
    test: CodeTest

    @property
    def question(self) -> str:
        return PROMPT.format(prompt=self.prompt)

    @property
    def checks(self) -> Checks | None:
        """The examples in the docstring; None if there are none."""
        return checks_of(self.question)


def problems_of(path: Path, number: int) -> list[CodeProblem]:
    """The first problems of the file."""
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()[:number]]
    tests = [code_test(record) for record in records]
    return [
        CodeProblem(record["task_id"], record["prompt"], test)
        for record, test in zip(records, tests, strict=True)
        if test is not None
    ]


def pool_file() -> RowFile:
    return RowFile(ROWS / "samples.jsonl", ("problem",))


def grade_file() -> RowFile:
    return RowFile(ROWS / "grades.jsonl", ("problem",))


@app.command()
def sample(
    humaneval: HumanEval,
    problems: Number = 164,
    minutes: Annotated[float, typer.Option(min=0.1, help="Ends after this time, whatever is missing then.")] = 60.0,
    model: str = GENERATOR,
    dtype: str = "float32",
    requests: Annotated[int, typer.Option(min=N, max=256, help="Samples written at a time.")] = 48,
    threads: Annotated[int, typer.Option(min=1, help="Cores of the engine.")] = 2,
) -> None:
    """Writes eight samples of each problem that has none yet."""
    ends_at = time.monotonic() + 60 * minutes
    settings = generator_settings(model, requests, threads).model_copy(update={"dtype": dtype})
    pool = pool_file()
    missing = [problem for problem in problems_of(humaneval, problems) if (problem.id,) not in pool]
    began = time.monotonic()

    def keep(row: Row) -> None:
        pool.append(row | {"model": Path(model).name, "dtype": dtype})
        console.print(f"{row['problem']}: {sum(row['tokens'])} tokens, {row['seconds']} s")

    async def run() -> None:
        async with started_generator(settings) as (engine, matcher):
            environment = SearchEnvironment(engine, NoScorer(), CONTEXT_TOKENS, matcher)

            async def work(problem: CodeProblem) -> Row:
                return await sampled(problem, engine, environment)

            await in_parallel(missing, work, keep, max(1, requests // N), ends_at)

    asyncio.run(run())
    done = sum((problem.id,) in pool for problem in missing)
    console.print(f"{done} of {len(missing)} problems, {(time.monotonic() - began) / max(1, done):.1f} s each")


async def sampled(problem: CodeProblem, engine: "GenerationEngine", environment: SearchEnvironment) -> Row:
    """The samples of a problem. Siblings are not merged: each sample is one written sequence."""
    prompt = engine.encode_chat([{"role": "user", "content": problem.question}])
    field = {"strategy": "self_consistency", "n": N, "merge_siblings": False, "max_depth": MAX_STEPS, **SAMPLING}
    limits = {"max_path_tokens": MAX_SOLUTION_TOKENS, "seed": problem_seed(SEED, problem.id)}
    began = time.monotonic()
    outcome = await run_search(
        problem.question, prompt, parse_search(field | limits), environment, search_id=problem.id
    )
    ends = sorted(outcome.tree.terminals, key=lambda node: node.id)
    return {
        "problem": problem.id,
        "seconds": round(time.monotonic() - began, 1),
        "texts": [outcome.tree.text_of(end) for end in ends],
        "tokens": [sum(len(step.token_ids) for step in end.steps) for end in ends],
        "ends": [str(end.steps[-1].end) for end in ends],
    }


@app.command()
def report(
    humaneval: HumanEval,
    problems: Number = 164,
    keep: Annotated[bool, typer.Option(help="Write the figures to benchmarks/results.")] = False,
) -> None:
    """Grades the samples that are there, and compares what is picked from them."""
    found = asyncio.run(outcomes_of(problems_of(humaneval, problems), pool_file().rows))
    figures = figures_of(found, pool_file().rows)
    for name, value in figures["accuracy"].items():
        console.print(f"{name:12} {value['all']:.1%} of {len(found)}, with examples {value['with_examples']:.1%}")
    show_claims(console, figures["claims"])
    if keep:
        console.print(f"kept in {write_result('code', figures)}")


class Outcome(NamedTuple):
    """What is picked from the samples of one problem: the probability that it is right, by rule."""

    has_examples: bool
    picked: dict[str, float]


class Programs(NamedTuple):
    """What runs programs: as a reward model, and for votes."""

    scorer: ExecutionScorer
    answers: CodeAnswers


@asynccontextmanager
async def running_programs() -> AsyncIterator[Programs]:
    """`Programs` with sandboxes of their own, which end with the context."""
    settings = ExecutionSettings()
    programs = Programs(ExecutionScorer(settings), CodeAnswers(settings.workers, settings.limits))
    await programs.scorer.start()
    try:
        yield programs
    finally:
        await programs.scorer.close()
        await programs.answers.aclose()


async def outcomes_of(problems: Sequence[CodeProblem], rows: Mapping[Any, Row]) -> dict[str, Outcome]:
    """The outcome of each problem that has samples, by its id."""
    grades, slots = grade_file(), grading_slots()
    found: dict[str, Outcome] = {}
    async with running_programs() as programs:
        for problem in problems:
            if (row := rows.get((problem.id,))) is None:
                continue
            answers = [code_answer(text) for text in row["texts"]]
            right = await grades_of(problem, answers, grades, slots)
            scores, groups = await judged(problem, row["texts"], answers, programs)
            found[problem.id] = Outcome(problem.checks is not None, picks(answers, scores, groups, right))
    return found


async def grades_of(
    problem: CodeProblem, answers: Sequence[str | None], grades: RowFile, slots: asyncio.Semaphore
) -> list[bool]:
    """Whether each sample of a problem passes the record's test: from the file, to which a new problem is added."""
    if (problem.id,) not in grades:
        grades.append({"problem": problem.id, "passed": await graded(problem, answers, slots)})
    kept: list[bool] = grades.rows[problem.id,]["passed"]
    return kept


async def graded(problem: CodeProblem, answers: Sequence[str | None], slots: asyncio.Semaphore) -> list[bool]:
    """Whether each program passes the record's test."""
    return [answer is not None and await problem.test.passes(answer, slots) for answer in answers]


async def rewards_of(problem: CodeProblem, texts: Sequence[str], scorer: ExecutionScorer) -> list[float]:
    """The reward of the program in each text."""
    items = tuple(ScoreItem((text,), 1, ended=True) for text in texts)
    checks = problem.checks or Checks()
    rows = await scorer.score(ScoreRequest(problem.id, problem.question, items, 600.0, checks=checks))
    return [row[-1] for row in rows]


async def judged(
    problem: CodeProblem, texts: Sequence[str], answers: Sequence[str | None], programs: Programs
) -> tuple[list[float], list[int | None]]:
    """The reward of each sample, and the number of its group. Samples with the same behavior form a group."""
    rewards = await rewards_of(problem, texts, programs.scorer)
    given = [answer for answer in answers if answer is not None]
    shared = SearchEnvironment(None, programs.scorer, 0, None)  # type: ignore[arg-type]  # nothing is searched
    voting = programs.answers.environment(shared, problem.checks or Checks(), SearchTree(), None)
    grouping = await voting.matcher.grouping(given)
    answered = [index for index, answer in enumerate(answers) if answer is not None]
    group_of = {answered[member]: number for number, members in enumerate(grouping.groups) for member in members}
    return rewards, [group_of.get(index) for index in range(len(answers))]


def picks(
    answers: Sequence[str | None], scores: Sequence[float], groups: Sequence[int | None], right: Sequence[bool]
) -> dict[str, float]:
    """The probability that the picked sample is right, by rule."""
    found = {ONE: fmean(right), POOL: float(any(right))}
    indices = list(range(len(answers)))
    for name, rule in PICKED.items():
        chosen: list[bool] = []
        for first in indices:
            ballot: Ballot[int] = Ballot()
            for index in (*indices[first:], *indices[:first]):
                score = None if rule is SelectionRule.MAJORITY else scores[index]
                ballot.add(Candidate(index, score, answers[index], groups[index]))
            chosen.append(right[ballot.selected(rule).node])
        found[name] = fmean(chosen)
    return found


def figures_of(found: Mapping[str, Outcome], rows: Mapping[Any, Row]) -> dict[str, Any]:
    """The figures of a report."""

    def values(name: str, with_examples: bool | None = None) -> dict[str, float]:
        return {
            problem: outcome.picked[name]
            for problem, outcome in found.items()
            if with_examples in (None, outcome.has_examples)
        }

    def mean(name: str, with_examples: bool | None = None) -> float:
        return round(fmean(values(name, with_examples).values() or [0.0]), 4)

    def difference(name: str, with_examples: bool | None = None) -> dict[str, Any] | None:
        if not values(ONE, with_examples):
            return None
        return rounded(paired_bootstrap(values(ONE, with_examples), values(name, with_examples)))

    gain = paired_bootstrap(values(ONE), values(EXAMPLES))
    used = [rows[problem,] for problem in found]
    return {
        "problems": len(found),
        "problems_with_examples": sum(outcome.has_examples for outcome in found.values()),
        "samples": N,
        "sampling": SAMPLING,
        "prompt": PROMPT,
        "model": sorted({row["model"] for row in used}),
        "dtype": sorted({row["dtype"] for row in used}),
        "tokens_of_a_problem": round(fmean(sum(row["tokens"]) for row in used), 1),
        "accuracy": {
            name: {"all": mean(name), "with_examples": mean(name, True), "without_examples": mean(name, False)}
            for name in (ONE, *PICKED, POOL)
        },
        "above_one_sample": {
            name: {"all": difference(name), "with_examples": difference(name, True), "without": difference(name, False)}
            for name in (*PICKED, POOL)
        },
        "claims": [
            claim("picked by examples, above one sample", round(gain.mean, 4), f">= {ASKED}", gain.mean >= ASKED),
            claim("its interval", rounded(gain)["interval"], "above 0", gain.low > 0),
            claim("problems", len(found), 164, len(found) == 164),
        ],
    }


def rounded(difference: Difference) -> dict[str, Any]:
    interval = [round(difference.low, 4), round(difference.high, 4)]
    return {"problems": difference.problems, "mean": round(difference.mean, 4), "interval": interval}


if __name__ == "__main__":
    app()
