'''PRM-guided tree search: trees, strategies and the loop that runs them against two ports.

Pure Python, without Ray, vLLM or HTTP. A program brings a generator, which writes steps, and a scorer, which scores
them; everything else is here::

    import asyncio
    from search import *

    class Coin:
        """Writes heads or tails by a branch's seed, and likes heads."""

        async def expand(self, request):
            for expansion in request.expansions:
                for branch in expansion.branches:
                    side = "heads" if branch.seed % 2 else "tails"
                    step = Step((branch.seed % 2,), rf"\\boxed{{{side}}}", StepEnd.END_OF_SEQUENCE)
                    yield ChildGroup((Child(expansion.parent, branch.index, (step,), cached_tokens=0),))

        async def score(self, request):
            return [[0.9 if "heads" in item.steps[-1] else 0.1] for item in request.items]

    async def main():
        coin = Coin()
        environment = SearchEnvironment(coin, coin, context_tokens=100, matcher=AnswerMatcher())
        settings = parse_search({"strategy": "best_of_n", "n": 8, "seed": 1})
        outcome = await run_search("Heads or tails?", [1, 2, 3], settings, environment, search_id="coin")
        print(outcome.selection.answer, outcome.cost.generated_tokens)

    asyncio.run(main())
'''

from search.answers.equivalence import AnswerMatcher
from search.budget import Budget
from search.errors import (
    BudgetTooSmall,
    ContextsUnavailable,
    GeneratorError,
    HookError,
    LimitReached,
    PromptTooLong,
    ScorerError,
    SearchError,
)
from search.ports import (
    Branch,
    Child,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    Generator,
    Lane,
    Sampling,
    ScoreItem,
    ScoreRequest,
    StepScorer,
    StopCondition,
)
from search.prompt import Prompt
from search.run.environment import Fallback, SearchEnvironment
from search.run.report import (
    ContextStarted,
    RoundStarted,
    SearchCost,
    SearchEvent,
    SearchFinished,
    SearchOutcome,
    SearchStarted,
    StepScored,
    StepsPruned,
)
from search.run.runner import run_search
from search.run.step_hook import END_PATH, EndPath, HookFallback, StepHook
from search.settings import SearchSettings, parse_search
from search.snapshot import replay_of, restore_tree, save_tree, tree_as_json
from search.strategies.base import Expansion, Strategy
from search.strategies.catalog import STRATEGIES, catalog_of
from search.tree import Node, NodeStatus, Prefill, Reading, SearchTree, Step, StepEnd

__all__ = [
    "END_PATH",
    "STRATEGIES",
    "AnswerMatcher",
    "Branch",
    "Budget",
    "BudgetTooSmall",
    "Child",
    "ChildGroup",
    "ContextStarted",
    "ContextsUnavailable",
    "EndPath",
    "ExpandItem",
    "ExpandRequest",
    "Expansion",
    "Fallback",
    "Generator",
    "GeneratorError",
    "HookError",
    "HookFallback",
    "Lane",
    "LimitReached",
    "Node",
    "NodeStatus",
    "Prefill",
    "Prompt",
    "PromptTooLong",
    "Reading",
    "RoundStarted",
    "Sampling",
    "ScoreItem",
    "ScoreRequest",
    "ScorerError",
    "SearchCost",
    "SearchEnvironment",
    "SearchError",
    "SearchEvent",
    "SearchFinished",
    "SearchOutcome",
    "SearchSettings",
    "SearchStarted",
    "SearchTree",
    "Step",
    "StepEnd",
    "StepHook",
    "StepScored",
    "StepScorer",
    "StepsPruned",
    "StopCondition",
    "Strategy",
    "catalog_of",
    "parse_search",
    "replay_of",
    "restore_tree",
    "run_search",
    "save_tree",
    "tree_as_json",
]
