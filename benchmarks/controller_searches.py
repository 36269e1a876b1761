"""One search over quick ports, from its start until its tree is freed, and the cost of each part."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.loop_holds import GarbageClock, Hold, Holds, measured
from benchmarks.quick_ports import OwnTime, QuickGenerator, QuickScorer
from deployments.http.choices import ChoiceOptions
from deployments.http.replies import Head, completion, dumps
from deployments.http.searches.tree_reply import with_tree
from search.answers.equivalence import AnswerMatcher
from search.problem import Problem
from search.run.disposal import Disposal
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.run.solver import Solver
from search.settings import SearchSettings, parse_search
from search.strategies.catalog import STRATEGIES
from search.tree import SearchTree

SIZES = {256: (16, 16), 1_024: (32, 32), 4_096: (64, 64), 16_384: (256, 64), 65_536: (768, 100)}
"""Width and levels of the search, by the nodes of its tree."""
MAX_LEVELS = 100
GENERATION_STEPS = 16
"""Steps of an AB-MCTS generation that runs to the end of the solution."""
PROMPT = tuple(range(100, 200))
SEED = 7


@dataclass(frozen=True)
class Measured:
    """Costs of one search."""

    nodes: int
    stop_reason: str
    step_us: float
    """CPU microseconds per node of the search, and of the reply with its figures."""
    tree_us: float
    """Extra CPU microseconds per node for the tree in the reply."""
    free_us: float
    """CPU microseconds per node for freeing the tree."""
    holds: list[Hold]
    """The longest callbacks of the search, of both replies and of the freeing; the longest first."""
    garbage_ms: float
    """CPU time of all garbage collections in these parts."""
    longest_garbage_ms: float
    left: int
    """Objects that only a full garbage collection frees."""

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "stop_reason": self.stop_reason,
            "step_us": round(self.step_us, 2),
            "tree_us": round(self.tree_us, 2),
            "free_us": round(self.free_us, 2),
            "longest_holds": [{"ms": round(hold.seconds * 1e3, 3), "of": hold.what} for hold in self.holds[:3]],
            "garbage_ms": round(self.garbage_ms, 2),
            "longest_garbage_ms": round(self.longest_garbage_ms, 3),
            "left_to_the_collector": self.left,
        }


def settings_of(strategy: str, size: int) -> SearchSettings:
    width, _ = SIZES[size]
    given: dict[str, Any] = {"strategy": strategy, "seed": SEED, "max_path_tokens": 8192, "budget": {"nodes": size}}
    fields = STRATEGIES[strategy].model_fields
    unchecked: dict[str, Any] = {"max_depth": MAX_LEVELS}
    if "n" in fields:
        unchecked["n"] = width
    if "iterations" in fields:
        unchecked["iterations"] = size  # the budget of nodes ends the search earlier
    settings = parse_search(given)
    return settings.model_copy(update={"strategy": settings.strategy.model_copy(update=unchecked)})


async def measure(strategy: str, size: int, repeated: float, matcher: AnswerMatcher) -> Measured:
    """Measures one search. ``repeated``: share of siblings that repeat another's text."""
    width, levels = SIZES[size]
    steps = {"greedy": MAX_LEVELS, "ab_mcts": GENERATION_STEPS}.get(strategy, levels)
    garbage = GarbageClock()
    fakes = OwnTime(lambda: garbage.seconds)
    environment = SearchEnvironment(
        generator=QuickGenerator(fakes, repeated, steps),
        scorer=QuickScorer(fakes),
        context_tokens=100_000,
        matcher=matcher,
        solver=BestQuarter(),
    )
    selection = settings_of(strategy, size).strategy.selection
    options = ChoiceOptions(1, selection, logprobs=False, spell=lambda ids: ["" for _ in ids])
    head = Head("chatcmpl-0", 0, "fake", strategy, width, len(PROMPT), 0.8, (), options, "default")
    disposal = Disposal()
    found: list[SearchOutcome] = []

    async def search() -> None:
        tree = SearchTree()
        disposal.watch(tree)
        outcome = await run_search(
            "What is it?", PROMPT, settings_of(strategy, size), environment, search_id="cost", tree=tree
        )
        dumps(completion(head, outcome))
        found.append(outcome)

    async def reply_with_tree() -> None:
        await with_tree(completion(head, found[0]), found[0].tree)

    async def free() -> None:
        found.clear()
        await disposal.finish()

    async def timed(part: Callable[[], Awaitable[None]]) -> Holds:
        holds = Holds()
        with garbage.running(), measured(holds, fakes, garbage):
            await asyncio.create_task(part())  # type: ignore[arg-type]
        return holds

    searched = await timed(search)
    nodes, stop_reason = len(found[0].tree), str(found[0].stop_reason)
    replied = await timed(reply_with_tree)
    freed = await timed(free)
    return Measured(
        nodes=nodes,
        stop_reason=stop_reason,
        step_us=searched.seconds / nodes * 1e6,
        tree_us=replied.seconds / nodes * 1e6,
        free_us=freed.seconds / nodes * 1e6,
        holds=sorted([*searched.longest, *replied.longest, *freed.longest], reverse=True),
        garbage_ms=garbage.seconds * 1e3,
        longest_garbage_ms=garbage.longest * 1e3,
        left=gc.collect(),
    )


class BestQuarter(Solver):
    """Keeps the best quarter of the leaves, at once, in place of the integer program that ETS solves in another
    process."""

    async def solve(self, problem: Problem) -> list[int]:
        values = problem.argument.values
        order = sorted(range(len(values)), key=lambda index: -values[index])
        return sorted(order[: max(1, len(order) // 4)])
