"""What becomes of a published model's thoughts under a budget of thinking?

    python -m benchmarks.thinking --gsm8k DIRECTORY

Qwen2.5-Coder-0.5B-Instruct has no token ``<think>``. A system prompt, chosen on training problems, has it think between
``<think>`` and ``</think>`` as plain text (``generator.reasoning: think_text``), which it does in most branches. On one
engine, training problems of GSM8K get eight whole solutions under each budget, all at once; a problem has the same seed
under each. Thinking is counted from the tokens alone, between the marks, not from what the engine reports. The result
also has the first thoughts that a budget cut off: what was given to the model there, and what it wrote then.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.published.engines import CONTEXT_TOKENS, generator_settings, started_generator
from benchmarks.published.problems import MathProblem, chosen_problems
from benchmarks.published.sampling import MAX_STEPS, SEED, NoScorer
from benchmarks.record import claim, show_claims, write_result
from cluster.evaluation.loop import problem_seed
from deployments.engines.reasoning import MARKS, PLAIN_TEXT
from search.run.environment import SearchEnvironment, are_same
from search.run.runner import run_search
from search.settings import parse_search
from search.tree import Step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM = (
    "You are a careful assistant that always thinks before it answers. Begin every reply with <think>, think about the "
    "problem in a few short sentences, write </think>, and then write a short solution with the final answer within "
    "\\boxed{}."
)
BUDGETS = (None, 128, 64, 0)
SOLUTIONS = 8
LIMITS = {"max_thinking_tokens": 256, "max_path_tokens": 256, "max_depth": MAX_STEPS}
EXAMPLES = 6
OPENING, CLOSING = MARKS[PLAIN_TEXT]
console = Console(width=160)


class Written(NamedTuple):
    """One branch: a thought, if there is one, and the solution behind it."""

    problem: str
    thought: str
    """Between the marks, as far as the model wrote it."""
    thinking_tokens: int
    """Tokens that the model wrote behind the opening mark, the closing mark included; 0 without a thought."""
    given: str
    """The text that the model was given."""
    given_tokens: int
    thinks: bool
    """Whether there is a thought, or would be one without a budget of 0."""
    closed: bool
    """Whether the thought is over."""
    solution: str
    solution_tokens: int
    right: bool

    def keeps(self, budget: int) -> bool:
        return self.thinking_tokens <= budget

    @property
    def cut_off(self) -> bool:
        """Whether the model was given the end of a thought that it had begun."""
        return self.thinking_tokens > 0 and self.given_tokens > 0


class Reader:
    """Reads branches from their tokens."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer

    def written(self, steps: Sequence[Step], problem: str, right: bool) -> Written:
        first, *others = steps
        ids = first.token_ids
        start, stop = first.given[0] if first.given else (len(ids), len(ids))
        given, text = self._text(ids[start:stop]), self._text(ids)
        begins = text.lstrip().startswith(OPENING)
        closed = begins and CLOSING in text
        opening = self._tokens_up_to(OPENING, ids) if begins else 0
        thought_end = self._tokens_up_to(CLOSING, ids) if closed else len(ids) if begins else 0
        thought = self._text(ids[opening : min(start, thought_end)]).removesuffix(CLOSING)
        return Written(
            problem,
            thought.partition(CLOSING)[0],
            max(0, min(start, thought_end) - opening),
            given,
            stop - start,
            begins,
            closed,
            first.solution + "".join(step.text for step in others),
            sum(len(step.token_ids) for step in steps) - max(thought_end, stop if first.given else 0),
            right,
        )

    def _tokens_up_to(self, mark: str, ids: Sequence[int]) -> int:
        """Number of tokens up to the one that completes the first ``mark``."""
        return next(number for number in range(1, len(ids) + 1) if mark in self._text(ids[:number]))

    def _text(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        assert isinstance(text, str)
        return text


async def written_under(
    budget: int | None, problem: MathProblem, prompt: Sequence[int], environment: SearchEnvironment, reader: Reader
) -> list[Written]:
    """The branches of one problem."""
    field = {"strategy": "self_consistency", "n": SOLUTIONS, "merge_siblings": False, **LIMITS}
    settings = parse_search(field | {"seed": problem_seed(SEED, problem.id), "budget": {"thinking": budget}})
    search_id = f"{problem.id}:{budget}"
    outcome = await run_search(problem.question, prompt, settings, environment, search_id=search_id)
    found = []
    for end in sorted(outcome.tree.terminals, key=lambda node: node.id):
        answer = outcome.tree.answer_of(end)
        right = answer is not None and await are_same(environment.matcher, problem.answer, answer)
        found.append(reader.written(end.steps, problem.id, right))
    return found


def figures_of(budget: int | None, branches: Sequence[Written]) -> dict[str, Any]:
    """The figures of all branches under one budget."""
    thinking = [each for each in branches if each.thinks]
    tokens = [each.thinking_tokens for each in thinking] or [0]

    def share(count: int, of: Sequence[Written] = branches) -> float:
        return round(count / len(of), 3) if of else 0.0

    return {
        "budget": budget,
        "branches": len(branches),
        "kept": share(sum(budget is None or each.keeps(budget) for each in branches)),
        "think": share(len(thinking)),
        "cut_off": share(sum(each.cut_off for each in branches)),
        "thinking_tokens_mean": round(statistics.fmean(tokens), 1),
        "thinking_tokens_largest": max(tokens),
        "given_tokens_mean": round(statistics.fmean(each.given_tokens for each in branches), 1),
        "solution_tokens_mean": round(statistics.fmean(each.solution_tokens for each in branches), 1),
        "thoughts_with_a_solution": share(
            sum(each.closed and bool(each.solution.strip()) for each in thinking), thinking
        ),
        "marks_in_the_solution": share(sum(OPENING in each.solution or CLOSING in each.solution for each in branches)),
        "right": share(sum(each.right for each in branches)),
    }


def examples_of(branches: Sequence[Written], budget: int) -> list[dict[str, Any]]:
    """The first branch of each problem whose thought was cut off."""
    firsts: dict[str, Written] = {}
    for each in branches:
        if each.cut_off:
            firsts.setdefault(each.problem, each)
    fields = ("problem", "thought", "given", "solution", "right")
    return [{"budget": budget} | {name: getattr(each, name) for name in fields} for each in firsts.values()][:EXAMPLES]


def table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        shown.add_row(*map(str, row.values()))
    return shown


def main(
    gsm8k: Annotated[Path, typer.Option(help="Directory with GSM8K's train.jsonl.")],
    problems: Annotated[int, typer.Option(min=1, help="Training problems, in their fixed order.")] = 8,
    model: str = ".models/Qwen2.5-Coder-0.5B-Instruct",
    requests: Annotated[int, typer.Option(min=1, max=256, help="Branches written at a time.")] = 128,
    threads: Annotated[int, typer.Option(min=1, help="Cores of the engine.")] = 2,
    keep: Annotated[bool, typer.Option(help="Write the figures to benchmarks/results.")] = False,
) -> None:
    chosen = chosen_problems(gsm8k, "train", problems)
    settings = generator_settings(model, requests, threads).model_copy(update={"reasoning": PLAIN_TEXT})

    async def run() -> tuple[list[list[Written]], float]:
        async with started_generator(settings) as (engine, matcher):
            from transformers import AutoTokenizer

            reader = Reader(AutoTokenizer.from_pretrained(model))
            environment = SearchEnvironment(
                engine, NoScorer(), CONTEXT_TOKENS, matcher, thinking_context=CONTEXT_TOKENS
            )
            system = {"role": "system", "content": SYSTEM}
            prompts = [engine.encode_chat([system, {"role": "user", "content": each.question}]) for each in chosen]
            began = time.monotonic()
            written = await asyncio.gather(
                *(
                    written_under(budget, problem, prompt, environment, reader)
                    for budget in BUDGETS
                    for problem, prompt in zip(chosen, prompts, strict=True)
                )
            )
            return list(written), time.monotonic() - began

    written, seconds = asyncio.run(run())
    by_budget = {
        budget: [each for row in written[number * problems : (number + 1) * problems] for each in row]
        for number, budget in enumerate(BUDGETS)
    }
    rows = [figures_of(budget, branches) for budget, branches in by_budget.items()]
    kept = [each.keeps(budget) for budget, branches in by_budget.items() if budget is not None for each in branches]
    share = round(statistics.fmean(kept), 4)
    claims = [claim("branches that keep their budget of thinking", share, 1.0, share == 1.0)]
    examples = [one for budget in BUDGETS if budget for one in examples_of(by_budget[budget], budget)]
    figures = {
        "model": Path(model).name,
        "dtype": settings.dtype,
        "system": SYSTEM,
        "limits": LIMITS,
        "problems": problems,
        "solutions": SOLUTIONS,
        "seconds": round(seconds, 1),
        "budgets": rows,
        "claims": claims,
        "examples": examples,
    }
    console.print(table(rows))
    console.print_json(data=examples)
    show_claims(console, claims)
    if keep:
        console.print(f"kept in {write_result('thinking', figures).name}")


if __name__ == "__main__":
    typer.run(main)
