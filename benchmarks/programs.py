"""What is it worth to run the programs in solutions, at equal tokens?

    python -m benchmarks.programs choose --gsm8k DIRECTORY
    python -m benchmarks.programs measure --gsm8k DIRECTORY --prompt NAME --problems N --keep

Qwen2.5-Coder-0.5B-Instruct on GSM8K, whole solutions. Without the tool they are those of `benchmarks.published`, asked
as Banyan asks by default. With it they are written here under each prompt; under the default prompt they are the same
solutions up to the first program in each, which is run, and from there on they are written again. So a solution without
a program is the same on both sides, and only what programs change is compared.

``choose`` compares prompts on training problems, and tells the number of test problems at which a gain of 3 points
would be seen, from how often the two sides disagree there. ``measure`` votes on test problems: the side with the tool
gets as many solutions as cost no more tokens, outputs of programs included, than 8 and 16 without; and as many as the
other side, where the tokens of both are told. Solutions are kept in DIRECTORY/SPLIT.jsonl of ``--out``, from which a
later run goes on.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from transformers import AutoTokenizer

from benchmarks.published.__main__ import SOLUTIONS, kept_solutions, pools_of
from benchmarks.published.engines import (
    CONTEXT_TOKENS,
    DTYPE,
    MAX_SOLUTION_TOKENS,
    UNWATCHED_S,
    generator_settings,
    started_generator,
)
from benchmarks.published.problems import MathProblem, chosen_problems
from benchmarks.published.rows import Row, RowFile
from benchmarks.published.sampling import SEED, NoScorer, in_parallel, solution, solutions_field
from benchmarks.published.strategies import PoolSolution, pool_of, vote, voted
from benchmarks.record import RESULTS, claim, show_claims, write_result
from cluster.evaluation.loop import problem_seed
from cluster.evaluation.paired_bootstrap import paired_bootstrap
from deployments.config import PythonToolSettings
from deployments.engines.programs import ProgramRunner
from search.answers.equivalence import AnswerMatcher
from search.answers.programs import FENCE, OPENING, output_block, program_answer
from search.answers.voting import SelectionRule
from search.ports import (
    NO_TOOL_USE,
    Branch,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    StopCondition,
    ToolUse,
    branch_seed,
)
from search.run.environment import SearchEnvironment, are_same
from search.run.runner import run_search
from search.settings import parse_search

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine

BOXED = "put your final answer within \\boxed{}."
UNASKED = "unasked"
"""Banyan's default prompt: only programs that the model writes of its own accord are run."""
PROMPTS = {
    UNASKED: "",
    "calculate": (
        "You are a careful assistant. Reason step by step. Do every calculation with a short Python program between "
        f"```python and ``` that prints its result; its output follows in an ```output block. At the end {BOXED}"
    ),
    "check": (
        "You are a careful assistant. Reason step by step. Then write one Python program between ```python and ``` "
        "that computes the answer from the numbers of the problem and prints it. Its output follows in an ```output "
        f"block; trust it more than your own arithmetic, and {BOXED}"
    ),
    "program": (
        "Solve the problem with Python. First say in two or three sentences what has to be computed. Then write one "
        "program between ```python and ``` with a named variable for each quantity, which prints the answer. Read its "
        f"output in the ```output block and {BOXED}"
    ),
}
"""Candidates of a system prompt. The one that `choose` finds best on training problems is measured."""
WIDTHS = (8, 16)
GAIN = 0.03
"""The gain in accuracy that the number of problems is chosen for."""
TOOL = PythonToolSettings().request
USE = ("tool_calls", "tool_errors", "tool_limits", "tool_tokens")
"""Figures of a row, in the order of `ToolUse`."""
console = Console(width=160)


class Vote(NamedTuple):
    """A majority vote among some solutions of a problem."""

    correct: float
    tokens: float


def majority(pool: Sequence[PoolSolution], n: int) -> Vote:
    """The vote among the first ``n`` solutions."""
    chosen = pool[:n]
    return Vote(float(chosen[vote(chosen).node].correct), sum(each.tokens for each in chosen))


def equal_width(without: float, pools: Mapping[str, Sequence[PoolSolution]]) -> int:
    """The largest number of solutions with the tool whose mean tokens are at most ``without``; at least 1."""
    most = min(map(len, pools.values()))

    def tokens(n: int) -> float:
        return statistics.fmean(majority(pool, n).tokens for pool in pools.values())

    return max((n for n in range(1, most + 1) if tokens(n) <= without), default=1)


def compared(
    width: int, without: Mapping[str, Sequence[PoolSolution]], with_tool: Mapping[str, Sequence[PoolSolution]]
) -> dict[str, Any]:
    """The vote of ``width`` without the tool beside the vote of equal tokens with it, on the problems of both."""
    both = sorted(without.keys() & with_tool.keys())
    first = {problem: majority(without[problem], width) for problem in both}
    tokens = statistics.fmean(vote.tokens for vote in first.values())
    n = equal_width(tokens, {problem: with_tool[problem] for problem in both})
    second = {problem: majority(with_tool[problem], n) for problem in both}
    difference = paired_bootstrap(
        {problem: vote.correct for problem, vote in first.items()},
        {problem: vote.correct for problem, vote in second.items()},
    )
    discordant = statistics.fmean(first[problem].correct != second[problem].correct for problem in both)
    return {
        "width": width,
        "problems": len(both),
        "without": round(statistics.fmean(vote.correct for vote in first.values()), 4),
        "tokens_without": round(tokens, 1),
        "width_with_tool": n,
        "with_tool": round(statistics.fmean(vote.correct for vote in second.values()), 4),
        "tokens_with_tool": round(statistics.fmean(vote.tokens for vote in second.values()), 1),
        "difference": round(difference.mean, 4),
        "interval": [round(difference.low, 4), round(difference.high, 4)],
        "discordant": round(discordant, 4),
    }


def of_as_many(
    width: int, without: Mapping[str, Sequence[PoolSolution]], with_tool: Mapping[str, Sequence[PoolSolution]]
) -> dict[str, Any]:
    """Votes of ``width`` solutions on both sides: of each problem, the mean over the disjoint parts of its pool."""
    both = sorted(without.keys() & with_tool.keys())
    votes = [
        {problem: voted(side[problem], width, SelectionRule.MAJORITY) for problem in both}
        for side in (without, with_tool)
    ]
    rights = [{problem: each.correct for problem, each in side.items()} for side in votes]
    difference = paired_bootstrap(rights[0], rights[1])
    right, tokens = (
        [round(statistics.fmean(getattr(each, name) for each in side.values()), 4) for side in votes]
        for name in ("correct", "tokens")
    )
    return {
        "width": width,
        "without": right[0],
        "with_tool": right[1],
        "tokens_over_without": round(tokens[1] / tokens[0], 4),
        "difference": round(difference.mean, 4),
        "interval": [round(difference.low, 4), round(difference.high, 4)],
    }


def problems_needed(discordant: float) -> int:
    """The number of problems at which a gain of ``GAIN`` is seen in four of five runs, by the normal approximation of
    McNemar's test (Connor 1987): where the sides disagree on this share of the problems."""
    share = max(discordant, GAIN)
    spread = 1.96 * math.sqrt(share) + 0.84 * math.sqrt(share - GAIN**2)
    return math.ceil((spread / GAIN) ** 2)


async def sampled(
    problems: Sequence[MathProblem],
    sides: Sequence[str],
    samples: int,
    rows: RowFile,
    model: str,
    requests: int,
    minutes: float,
) -> None:
    """Writes the solutions of each problem and prompt that has no row yet."""
    missing = [(problem, side) for problem in problems for side in sides if (problem.id, side) not in rows]
    if not missing:
        return
    tokenizer = AutoTokenizer.from_pretrained(model)
    kept = kept_solutions(problems[0].split)
    async with started_generator(generator_settings(model, requests, 2)) as (engine, matcher):
        runner = ProgramRunner()
        environment = SearchEnvironment(
            engine, NoScorer(), CONTEXT_TOKENS, matcher, extract_answer=program_answer, tool=TOOL
        )

        async def work(item: tuple[MathProblem, str]) -> Row:
            problem, side = item
            if side == UNASKED:
                return await _continued(problem, kept[problem.id], engine, matcher, runner, tokenizer)
            messages = [{"role": "system", "content": PROMPTS[side]}, {"role": "user", "content": problem.question}]
            return await _row(problem, side, engine.encode_chat(messages), samples, environment)

        began = time.monotonic()
        try:
            await in_parallel(missing, work, rows.append, max(1, requests // samples), began + 60 * minutes)
        finally:
            runner.close()
        console.print(f"{sum((problem.id, side) in rows for problem, side in missing)} of {len(missing)} rows written")


async def _row(problem: MathProblem, side: str, prompt: Sequence[int], n: int, environment: SearchEnvironment) -> Row:
    settings = parse_search(solutions_field(n) | {"seed": problem_seed(SEED, problem.id)})
    search_id = f"{problem.id}:{side}"
    outcome = await run_search(problem.question, prompt, settings, environment, search_id=search_id)
    ends = sorted(outcome.tree.terminals, key=lambda node: node.id)
    solutions = [await solution(outcome.tree, end, problem, environment.matcher) for end in ends]
    cost = outcome.cost
    figures = {name: getattr(cost, name) for name in USE}
    return {"problem": problem.id, "side": side, "dtype": DTYPE, "solutions": solutions, **figures}


async def _continued(
    problem: MathProblem,
    kept: Sequence[Mapping[str, Any]],
    engine: "GenerationEngine",
    matcher: AnswerMatcher,
    runner: ProgramRunner,
    tokenizer: Any,
) -> Row:
    """The kept solutions, those with a program written again behind its output."""
    prompt = engine.encode_chat([{"role": "user", "content": problem.text}])
    cut: dict[int, str] = {}
    uses: dict[int, ToolUse] = {}
    items: list[ExpandItem] = []
    for number, each in enumerate(kept):
        text = "".join(each["steps"])
        if not (closed := until_first_program(text)):
            continue
        run = await runner.run(TOOL, closed, None)
        output = output_block(run.output)
        before, given = (tokenizer.encode(part, add_special_tokens=False) for part in (closed, output))
        cut[number] = closed + output
        uses[number] = ToolUse(1, int(run.failed), int(run.timed_out), len(given))
        left = max(0, MAX_SOLUTION_TOKENS - len(before) - len(given))
        branch = Branch(0, branch_seed(problem_seed(SEED, problem.id), (number,), len(before)), left)
        items.append(ExpandItem((number,), (*prompt, *before, *given), (branch,), solution=len(prompt), room=left))
    request = ExpandRequest(
        problem.id, tuple(items), Sampling(), StopCondition.SOLUTION, Lane.DEMAND, UNWATCHED_S, tool=TOOL
    )
    continued: dict[str, Row] = {}
    if items:
        lengths = {item.parent: len(item.prefix) - len(prompt) for item in items}
        async for group in engine.expand(request):
            for child in group.children:
                [number] = child.parent
                text = cut[number] + "".join(step.text for step in child.steps)
                answer = program_answer(text)
                continued[str(number)] = {
                    "steps": [cut[number], *(step.text for step in child.steps)],
                    "tokens": [lengths[child.parent], *(len(step.token_ids) for step in child.steps)],
                    "answer": answer,
                    "correct": answer is not None and await are_same(matcher, problem.answer, answer),
                    "end": str(child.steps[-1].end),
                }
                uses[number] = ToolUse(*map(sum, zip(uses[number], child.tool, strict=True)))
    total = [sum(column) for column in zip(NO_TOOL_USE, *uses.values(), strict=True)]
    figures = dict(zip(USE, total, strict=True))
    return {"problem": problem.id, "side": UNASKED, "dtype": DTYPE, "continued": continued, **figures}


def until_first_program(text: str) -> str:
    """A solution up to the fence that closes its first program; empty if there is none."""
    start = text.find(OPENING)
    close = text.find(FENCE, start + len(OPENING)) if start >= 0 else -1
    return text[: close + len(FENCE)] if close >= 0 else ""


def _solutions_of(row: Row, kept: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """All solutions of a problem. Under the default prompt a row holds only the solutions that were written again, by
    index; the others are taken from ``kept``."""
    if row["side"] != UNASKED:
        found: Sequence[Mapping[str, Any]] = row["solutions"]
        return found
    return [row["continued"].get(str(number), each) for number, each in enumerate(kept)]


async def grouped(
    split: str, problems: list[MathProblem], sides: Sequence[str], rows: RowFile
) -> tuple[dict[str, list[PoolSolution]], dict[str, dict[str, list[PoolSolution]]]]:
    """The solutions without the tool by problem, and those with it by prompt and problem."""
    matcher, kept = AnswerMatcher(), kept_solutions(split)
    await matcher.start()
    try:
        without = await pools_of(split, problems, None, matcher)
        with_tool = {
            side: {
                problem: await pool_of(_solutions_of(rows.rows[problem, side], kept[problem]), None, matcher)
                for problem in without
                if (problem, side) in rows
            }
            for side in sides
        }
    finally:
        matcher.close()
    return without, with_tool


app = typer.Typer(help=__doc__, no_args_is_help=True)
Gsm8k = Annotated[Path, typer.Option(help="Directory with GSM8K's train.jsonl and test.jsonl.")]
Model = Annotated[str, typer.Option(help="Directory of the generator.")]
Samples = Annotated[
    int,
    typer.Option(min=1, max=256, help="Solutions of a problem with the tool: enough for a vote of equal tokens."),
]
Out = Annotated[Path, typer.Option(help="Directory of the kept solutions.")]
Requests = Annotated[int, typer.Option(min=1, max=256, help="Solutions written at a time.")]
Minutes = Annotated[float, typer.Option(min=0.0, help="Ends after so long; a later run goes on.")]
Keep = Annotated[bool, typer.Option(help="Write the figures to benchmarks/results.")]
DEFAULT_MODEL = ".models/Qwen2.5-Coder-0.5B-Instruct"


def _compare(
    split: str,
    sides: Sequence[str],
    problems: int,
    samples: int,
    gsm8k: Path,
    model: str,
    out: Path,
    requests: int,
    minutes: float,
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """By prompt: the comparisons of both widths, and the figures of its solutions and programs."""
    chosen, kept = chosen_problems(gsm8k, split, problems), kept_solutions(split)
    if lacking := sum(problem.id not in kept for problem in chosen):
        told = f"benchmarks.published has no solutions of {lacking} of these {split} problems"
        raise typer.BadParameter(told, param_hint="--problems")
    rows = RowFile(out / f"{split}.jsonl", ("problem", "side"))
    asyncio.run(sampled(chosen, sides, samples, rows, model, requests, minutes))
    without, with_tool = asyncio.run(grouped(split, chosen, sides, rows))
    widths = [width for width in WIDTHS if width <= SOLUTIONS[split]]
    found = {side: [compared(width, without, pools) for width in widths] for side, pools in with_tool.items()}
    used = {
        side: {name: sum(rows.rows[problem, side][name] for problem in pools) for name in USE}
        | {
            "one_solution": round(statistics.fmean(each.correct for pool in pools.values() for each in pool), 4),
            "solutions": sum(map(len, pools.values())),
            "as_many": [of_as_many(n, without, pools) for n in (1, *widths) if n <= min(map(len, pools.values()))],
        }
        for side, pools in with_tool.items()
    }
    return found, used


@app.command()
def choose(
    gsm8k: Gsm8k,
    problems: Annotated[int, typer.Option(min=1, help="Training problems, in their fixed order.")] = 32,
    samples: Samples = 12,
    model: Model = DEFAULT_MODEL,
    out: Out = RESULTS / "programs",
    requests: Requests = 128,
    minutes: Minutes = 600.0,
) -> None:
    """Compares the candidates on training problems."""
    found, used = _compare("train", list(PROMPTS), problems, samples, gsm8k, model, out, requests, minutes)
    for side, comparisons in found.items():
        console.print_json(data={"prompt": side, "votes": comparisons, **used[side]})
    best = max(found, key=lambda side: (found[side][0]["with_tool"], used[side]["one_solution"]))
    needed = max(problems_needed(each["discordant"]) for each in found[best])
    console.print(f"{best} is best; {needed} test problems would show a gain of {GAIN:.0%}")


@app.command()
def measure(
    gsm8k: Gsm8k,
    prompt: Annotated[str, typer.Option(help="The chosen candidate.")],
    problems: Annotated[int, typer.Option(min=1, help="Test problems, as many as `choose` said.")],
    samples: Samples = 20,
    model: Model = DEFAULT_MODEL,
    out: Out = RESULTS / "programs",
    requests: Requests = 128,
    minutes: Minutes = 600.0,
    keep: Keep = False,
) -> None:
    """Measures the chosen prompt on test problems."""
    if prompt not in PROMPTS:
        raise typer.BadParameter(f"one of {', '.join(PROMPTS)}", param_hint="--prompt")
    found, used = _compare("test", [prompt], problems, samples, gsm8k, model, out, requests, minutes)
    claims = [
        claim(
            f"majority of {each['width']} with programs run, over without, at equal tokens",
            each["difference"],
            "above 0, interval too",
            each["interval"][0] > 0,
        )
        for each in found[prompt]
    ]
    claims += [
        claim(
            f"{each['width']} with programs run, over as many without, at {each['tokens_over_without']} of the tokens",
            each["difference"],
            "above 0, interval too",
            each["interval"][0] > 0,
        )
        for each in used[prompt]["as_many"]
    ]
    figures = {
        "model": Path(model).name,
        "prompt": {prompt: PROMPTS[prompt]},
        "tool": TOOL._asdict(),
        "dtype": sorted({row["dtype"] for row in RowFile(out / "test.jsonl", ("problem", "side")).rows.values()}),
        "votes": found[prompt],
        "programs": used[prompt],
        "claims": claims,
    }
    console.print_json(data=figures["votes"])
    show_claims(console, claims)
    if keep:
        console.print(f"kept in {write_result('programs', figures).name}")


if __name__ == "__main__":
    app()
