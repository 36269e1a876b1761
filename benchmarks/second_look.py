"""Is a second look at a program that fails its examples worth more than another sample?

    python -m benchmarks.second_look refine --humaneval FILE --minutes 25     # goes on where it ended before
    python -m benchmarks.second_look report --humaneval FILE --keep

HumanEval with the samples of `benchmarks.code`. Where none of the first four of a problem passes all examples of its
docstring, ``refine`` has the model read each of the four once, with what the examples showed (``refine`` with ``n`` 4,
``depth`` 1 and the reward family ``execution``), and write it again. The other side takes four further samples. Each
side answers with the one of its eight programs that passes the most examples; the record's test is used only to grade
it. Problems without examples, and those where one of the four passes them all, are left out.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from benchmarks.code import (
    EXAMPLES,
    GENERATOR,
    POOL,
    ROWS,
    SAMPLING,
    CodeProblem,
    HumanEval,
    grade_file,
    graded,
    grades_of,
    judged,
    picks,
    pool_file,
    problems_of,
    rewards_of,
    rounded,
    running_programs,
)
from benchmarks.published.engines import DTYPE, MAX_SOLUTION_TOKENS
from benchmarks.published.rows import Row, RowFile
from benchmarks.published.sampling import MAX_STEPS, SEED, in_parallel
from benchmarks.reading import KeptSolutions, environment_of, started, steps_of
from benchmarks.record import claim, show_claims, write_result
from cluster.evaluation.code_test import grading_slots
from cluster.evaluation.loop import problem_seed
from cluster.evaluation.paired_bootstrap import paired_bootstrap
from deployments.engines.rewards.execution import ExecutionScorer
from deployments.service.code_answers import CodeAnswers
from search.answers.checks import Checks
from search.answers.code_answer import code_answer
from search.run.environment import SearchEnvironment
from search.run.runner import run_search
from search.settings import parse_search
from search.tree import SearchTree, Step

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console(width=120)
CHAINS = 4
SEARCH = {"strategy": "refine", "n": CHAINS, "depth": 1, **SAMPLING}
REFINED, SAMPLED = "refined", "sampled"


def second_file() -> RowFile:
    return RowFile(ROWS / "second_look.jsonl", ("problem",))


async def open_problems(
    problems: Sequence[CodeProblem], pool: Mapping[Any, Row], scorer: ExecutionScorer
) -> list[CodeProblem]:
    """Problems on which none of the first four samples passes every example. Those without examples are left out."""
    return [
        problem
        for problem in problems
        if problem.checks is not None
        and max(await rewards_of(problem, pool[problem.id,]["texts"][:CHAINS], scorer)) < 1
    ]


@app.command()
def refine(
    humaneval: HumanEval,
    minutes: Annotated[float, typer.Option(min=0.1, help="Ends after so long; a later run goes on.")] = 30.0,
    requests: Annotated[int, typer.Option(min=CHAINS, max=256, help="Programs written at a time.")] = 32,
) -> None:
    """Has the model write the programs of each open problem again that has no row yet."""
    ends_at = time.monotonic() + 60 * minutes
    pool, rows = pool_file().rows, second_file()

    def keep(row: Row) -> None:
        rows.append(row)
        console.print(f"{row['problem']}: {row['written_tokens']} tokens, {row['prompt_tokens']} read")

    async def run() -> None:
        async with running_programs() as programs:
            missing = [
                problem
                for problem in await open_problems(problems_of(humaneval, 164), pool, programs.scorer)
                if (problem.id,) not in rows
            ]
            async with started(GENERATOR, requests) as (engine, matcher):
                generator = KeptSolutions(engine, {problem.id: kept_steps(pool[problem.id,]) for problem in missing})
                shared = replace(environment_of(generator, engine, matcher), scorer=programs.scorer)

                async def work(problem: CodeProblem) -> Row:
                    return await refined(problem, pool[problem.id,], engine, shared, programs.answers)

                await in_parallel(missing, work, keep, max(1, requests // CHAINS), ends_at)
        console.print(f"{sum((problem.id,) in rows for problem in missing)} of {len(missing)} problems refined")

    asyncio.run(run())


async def refined(
    problem: CodeProblem, samples: Row, engine: "GenerationEngine", shared: SearchEnvironment, answers: CodeAnswers
) -> Row:
    """The programs that the model writes after it has read the first samples of a problem."""
    messages = [{"role": "user", "content": problem.question}]
    limits = {"max_path_tokens": MAX_SOLUTION_TOKENS, "max_depth": MAX_STEPS}
    tree = SearchTree()
    outcome = await run_search(
        problem.question,
        engine.encode_chat(messages),
        parse_search({**SEARCH, **limits, "seed": problem_seed(SEED, problem.id)}),
        answers.environment(shared, problem.checks or Checks(), tree, None),
        search_id=problem.id,
        messages=messages,
    )
    written = [node for node in outcome.tree.terminals if node.context is not None]
    return {
        "problem": problem.id,
        "texts": [outcome.tree.solution_of(node) for node in written],
        "written_tokens": outcome.cost.generated_tokens - sum(samples["tokens"][:CHAINS]),
        "prompt_tokens": outcome.cost.context_prompt_tokens,
        "dtype": DTYPE,
    }


def kept_steps(row: Row) -> list[tuple[Step, ...]]:
    """The samples of a problem, as `KeptSolutions` takes them."""
    samples = zip(row["texts"], row["tokens"], row["ends"], strict=True)
    return [steps_of({"steps": [text], "tokens": [tokens], "end": end}) for text, tokens, end in samples]


@app.command()
def report(
    humaneval: HumanEval,
    keep: Annotated[bool, typer.Option(help="Write the figures to benchmarks/results.")] = False,
) -> None:
    """Grades both sides of the problems that were refined."""
    figures = asyncio.run(compared(problems_of(humaneval, 164)))
    console.print_json(data=figures)
    show_claims(console, figures["claims"])
    if keep:
        console.print(f"kept in {write_result('second_look', figures)}")


async def compared(problems: Sequence[CodeProblem]) -> dict[str, Any]:
    """Both sides on the problems that were refined."""
    pool, rows, grades, slots = pool_file().rows, second_file().rows, grade_file(), grading_slots()
    picked: dict[str, dict[str, float]] = {REFINED: {}, SAMPLED: {}}
    in_pool: dict[str, list[float]] = {REFINED: [], SAMPLED: []}
    async with running_programs() as programs:
        for problem in problems:
            if (row := rows.get((problem.id,))) is None:
                continue
            samples = pool[problem.id,]["texts"]
            sampled = [code_answer(text) for text in samples]
            written = [code_answer(text) for text in row["texts"]]
            right = await grades_of(problem, sampled, grades, slots)
            both = {
                REFINED: (
                    samples[:CHAINS] + row["texts"],
                    sampled[:CHAINS] + written,
                    right[:CHAINS] + await graded(problem, written, slots),
                ),
                SAMPLED: (samples[: 2 * CHAINS], sampled[: 2 * CHAINS], right[: 2 * CHAINS]),
            }
            for side, (texts, answers, rights) in both.items():
                scores, groups = await judged(problem, texts, answers, programs)
                found = picks(answers, scores, groups, rights)
                picked[side][problem.id] = found[EXAMPLES]
                in_pool[side].append(found[POOL])
    used = [pool[problem,] for problem in picked[REFINED]]
    gain = paired_bootstrap(picked[SAMPLED], picked[REFINED])
    return {
        "search": SEARCH,
        "model": sorted({row["model"] for row in used}),
        "dtype": sorted({row["dtype"] for row in rows.values()}),
        "problems": gain.problems,
        "with_examples": sum(problem.checks is not None for problem in problems),
        "right": {side: round(fmean(values.values()), 4) for side, values in picked.items()},
        "some_program_right": {side: round(fmean(values), 4) for side, values in in_pool.items()},
        "written_tokens": {
            REFINED: round(fmean(row["written_tokens"] for row in rows.values())),
            SAMPLED: round(fmean(sum(row["tokens"][CHAINS : 2 * CHAINS]) for row in used)),
        },
        "read_tokens": round(fmean(row["prompt_tokens"] for row in rows.values())),
        "refined_less_sampled": rounded(gain),
        "claims": [claim("refined, less as many more samples", round(gain.mean, 4), "interval above 0", gain.low > 0)],
    }


if __name__ == "__main__":
    app()
