"""A generator and a scorer without a model. Their output depends on seed and text, its timing on chance."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from search.answers.equivalence import AnswerMatcher
from search.errors import GeneratorError, ScorerError
from search.ports import (
    Child,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    Generator,
    Headroom,
    ScoreRequest,
    StopCondition,
    ToolUse,
)
from search.run.environment import SearchEnvironment
from search.run.report import SearchEvent, SearchOutcome
from search.run.runner import run_search
from search.settings import SearchSettings, parse_search
from search.tree import Node, NodeId, NodeStatus, SearchTree, Step, StepEnd, Thought, begins_paths

PROMPT = (1, 2, 3, 4, 5)
ENVIRONMENT = {
    *("context_tokens", "fallback", "extract_answer", "solver", "step_hook", "prices"),
    *("thinking_context", "thought_is_over", "scores_thinking", "tool", "compose"),
}
"""Options of a search that belong to its environment."""


def seeded_rng(*parts: object) -> random.Random:
    """A random generator that is the same for the same parts."""
    return random.Random(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())


def write_step(seed: int, prefix: Sequence[int], max_tokens: int) -> Step:
    """A step of 1 to 9 tokens; one in six ends the solution with an answer between 0 and 4."""
    rng = seeded_rng("step", seed, tuple(prefix))
    wanted = rng.randint(1, 9)
    tokens = tuple(rng.randint(10, 99) for _ in range(min(wanted, max_tokens)))
    if wanted > max_tokens:
        return Step(tokens, "cut " + "-".join(map(str, tokens)), StepEnd.LENGTH)
    if rng.random() < 1 / 6:
        return Step(tokens, f"so it is \\boxed{{{rng.randint(0, 4)}}}", StepEnd.END_OF_SEQUENCE)
    return Step(tokens, "-".join(map(str, tokens)) + "\n\n", StepEnd.DELIMITER)


def write_solution(seed: int, prefix: Sequence[int], max_tokens: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    while not steps or (steps[-1].end is StepEnd.DELIMITER and max_tokens > 0):
        step = write_step(seed, (*prefix, len(steps)), max_tokens)
        steps.append(step)
        max_tokens -= len(step.token_ids)
    if steps[-1].end is StepEnd.DELIMITER:
        steps[-1] = steps[-1]._replace(end=StepEnd.LENGTH)
    return tuple(steps)


def reward_of(texts: Sequence[str]) -> float:
    """Reward of the last of these steps. It has one of 16 values, so that ties occur."""
    return seeded_rng("reward", tuple(texts)).randint(0, 15) / 15


class Turns:
    """Points at which the fakes yield to the event loop. ``at`` is called with the number of each."""

    def __init__(self, rng: random.Random, at: Callable[[int], None] | None = None) -> None:
        self.count = 0
        self._rng = rng
        self._at = at

    async def take(self) -> None:
        for _ in range(self._rng.randint(1, 4)):
            self.count += 1
            if self._at is not None:
                self._at(self.count)
            await asyncio.sleep(0)


class FakeGenerator:
    """Streams children in groups of random size and order."""

    def __init__(self, order: int = 0, turns: Turns | None = None, variety: int | None = None) -> None:
        self.variety = variety
        """Number of different steps that it writes below the same text; None: each seed writes a different one."""
        self.requests: list[ExpandRequest] = []
        self.live: set[tuple[NodeId, int]] = set()
        """Branches being written; empty once nothing is left behind."""
        self.most_live = 0
        self.tokens = 0
        self.fail_after: int | None = None
        """Children after which the generator fails."""
        self.stall_after: int | None = None
        """Children after which it hangs."""
        self.stalled = asyncio.Event()
        self.forget = 0
        """Children omitted at the end of the first stream."""
        self.break_at_end = False
        self.ended = 0
        """Streams that ended by themselves."""
        self.interruptions = 0
        """Maximum number of calls that break off before one of their groups, for `deployments.calls` to go on with."""
        self.repeat = False
        """Sends every group twice, and children that were not requested."""
        self.short_of_memory: int | None = None
        """Seed for giving branches back; None: it gives none back. The choice also depends on the request."""
        self._rng = random.Random(order)
        self._turns = turns or Turns(self._rng)
        self._sent = 0

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        self.requests.append(request)
        branches = [(expansion, branch) for expansion in request.expansions for branch in expansion.branches]
        names = {(expansion.parent, branch.index) for expansion, branch in branches}
        assert not names & self.live
        self.live |= names
        waiting: set[tuple[NodeId, int]] = set()
        self.most_live = max(self.most_live, len(self.live))
        try:
            if self.short_of_memory is not None:
                await self._turns.take()
                written = tuple(map(self._granted, request.expansions))
                branches = [
                    (expansion, branch)
                    for expansion, count in zip(request.expansions, written, strict=True)
                    for branch in expansion.branches[:count]
                ]
                kept = {(expansion.parent, branch.index) for expansion, branch in branches}
                if given_back := names - kept:
                    self.live -= given_back
                    waiting.add(min(kept))
                    unwritten = (Child(parent, index, (), 0) for parent, index in sorted(given_back))
                    yield ChildGroup(tuple(unwritten), Headroom(1, 4, 0, 0))
            self._rng.shuffle(branches)
            branches = branches[: len(branches) - self.forget]
            while branches:
                await self._turns.take()
                size = self._rng.randint(1, 3)
                group = tuple(self._write(request, *branch) for branch in branches[:size])
                group = tuple(child._replace(waited=(child.parent, child.index) in waiting) for child in group)
                branches = branches[size:]
                await self._break(len(group))
                self.live -= {(child.parent, child.index) for child in group}
                yield ChildGroup(group)
                if self.repeat:
                    yield ChildGroup((*group, group[0]._replace(index=10_000)))
            await self._turns.take()
            if self.break_at_end:
                raise GeneratorError("too late to matter")
            self.ended += 1
        finally:
            self.live -= names

    def _granted(self, expansion: ExpandItem) -> int:
        rng = seeded_rng("short of memory", self.short_of_memory, expansion.parent, expansion.branches[0].index)
        return min(len(expansion.branches), max(expansion.least, rng.randint(0, 4)))

    async def _break(self, count: int) -> None:
        if self.interruptions and self._rng.random() < 0.5:
            self.interruptions -= 1
            raise ConnectionResetError("the replica has died")
        self._sent += count
        if self.fail_after is not None and self._sent > self.fail_after:
            raise GeneratorError("no replica is left")
        if self.stall_after is not None and self._sent > self.stall_after:
            self.stalled.set()
            await asyncio.Event().wait()

    def _write(self, request: ExpandRequest, expansion: Any, branch: Any) -> Child:
        seed = branch.seed if self.variety is None else branch.seed % self.variety
        if request.stop_condition is StopCondition.SOLUTION:
            steps = write_solution(seed, expansion.prefix, branch.max_tokens)
        else:
            steps = (write_step(seed, expansion.prefix, branch.max_tokens),)
        if request.logprobs:
            steps = tuple(step._replace(logprob=-sum(step.token_ids) / 99) for step in steps)
        self.tokens += sum(len(step.token_ids) for step in steps)
        return Child(expansion.parent, branch.index, steps, cached_tokens=len(expansion.prefix) - 1)


class ThinkingGenerator(FakeGenerator):
    """Thinks before the solution, as long as it is asked to: 1 to 12 tokens, with a box and an empty line in them."""

    def _write(self, request: ExpandRequest, expansion: Any, branch: Any) -> Child:
        asked = request.thought
        if asked is None or not begins_paths(expansion.parent):
            return super()._write(request, expansion, branch)
        rng = seeded_rng("thought", branch.seed)
        most, wanted = min(asked.max_tokens, branch.max_tokens), rng.randint(1, 12)
        tokens = tuple(rng.randint(100, 199) for _ in range(min(wanted, most)))
        text = ("" if asked.opened else "<think>") + f"guess \\boxed{{9}}\n\n{'-'.join(map(str, tokens))}"
        given: tuple[tuple[int, int], ...] = ()
        self.tokens += len(tokens)
        ends = StepEnd.LENGTH if wanted > most else StepEnd.END_OF_SEQUENCE if rng.random() < 0.1 else None
        if ends is StepEnd.LENGTH and asked.closes:
            given, ends = ((len(tokens), len(tokens) + 3),), None
            tokens = (*tokens, 7, 8, 9)
        if ends is None:
            text += "</think>\n\n"
        thought = Thought(len(tokens), len(text))
        left = min(asked.solution_tokens, branch.max_tokens - len(tokens) + 3 * len(given))
        child = Child(expansion.parent, branch.index, (), cached_tokens=len(expansion.prefix) - 1)
        if ends is not None or left < 1:
            return child._replace(steps=(Step(tokens, text, ends or StepEnd.LENGTH, -1.0, None, thought, given),))
        behind = expansion._replace(prefix=(*expansion.prefix, *tokens))
        first, *others = super()._write(request, behind, branch._replace(max_tokens=left)).steps
        first = Step((*tokens, *first.token_ids), text + first.text, first.end, first.logprob, None, thought, given)
        return child._replace(steps=(first, *others))


class ProgramGenerator(FakeGenerator):
    """Writes programs in some steps, which are given 3 tokens of output each, and meet the time limit now and then."""

    def _write(self, request: ExpandRequest, expansion: Any, branch: Any) -> Child:
        child = super()._write(request, expansion, branch)
        if request.tool is None:
            return child
        assert expansion.solution == len(PROMPT)
        room, use, steps = expansion.room - sum(len(step.token_ids) for step in child.steps), ToolUse(), []
        for number, plain in enumerate(child.steps):
            step, rng = plain, seeded_rng("program", branch.seed, number)
            if rng.random() < 0.5 and step.end is StepEnd.DELIMITER and room >= 3:
                room -= 3
                step = step._replace(
                    token_ids=(step.token_ids[0], 7, 8, 9, *step.token_ids[1:]),
                    text=f"ran: {step.text}",
                    given=((1, 4),),
                )
                use = ToolUse(use.calls + 1, use.errors, use.limits + (rng.random() < 0.02), use.tokens + 3)
            steps.append(step)
        return child._replace(steps=tuple(steps), tool=use)


class FakeScorer:
    """Rewards by text. ``spoil`` may replace its rewards by anything."""

    name = "fake-prm"

    def __init__(self, order: int = 0, turns: Turns | None = None) -> None:
        self.requests: list[ScoreRequest] = []
        self.spoil: Callable[[list[list[float]]], Any] = lambda rewards: rewards
        self.stall = False
        self.stalled = asyncio.Event()
        self._turns = turns or Turns(random.Random(order))

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        self.requests.append(request)
        await self._turns.take()
        if self.stall:
            self.stalled.set()
            await asyncio.Event().wait()
        rewards = [
            [reward_of(item.steps[: end + 1]) for end in range(len(item.steps) - item.unscored, len(item.steps))]
            for item in request.items
        ]
        return self.spoil(rewards)  # type: ignore[no-any-return]


def broken(rewards: list[list[float]]) -> Any:
    raise ScorerError("unreachable")


class WatchedTree(SearchTree):
    """Counts how often each node completed, and refuses a status that moves backwards."""

    STATUS_ORDER = tuple(NodeStatus)

    def __init__(self) -> None:
        super().__init__()
        self.times_completed: dict[NodeId, int] = {}

    def _set_status(self, node: Node, status: NodeStatus) -> None:
        assert self.STATUS_ORDER.index(status) > self.STATUS_ORDER.index(node.status)
        if node.status in (NodeStatus.PENDING, NodeStatus.WRITTEN):
            self.times_completed[node.id] = self.times_completed.get(node.id, 0) + 1
        super()._set_status(node, status)

    def check(self) -> None:
        """Checks that every node has completed once, and that the invariants hold."""
        assert self.check_integrity() == []
        assert self.in_flight == 0
        assert self.times_completed == {node.id: 1 for node in self.nodes}


class Bench:
    """Ports, tree and events of one search."""

    def __init__(self, order: int = 0, turns: Turns | None = None, variety: int | None = None) -> None:
        self.generator = FakeGenerator(order, turns, variety)
        self.scorer = FakeScorer(order, turns)
        self.through: Callable[[Any], Generator] = lambda generator: generator
        """Returns the port to the generator."""
        self.matcher = AnswerMatcher()
        self.tree = WatchedTree()
        self.events: list[SearchEvent] = []

    async def search(self, settings: dict[str, Any], **options: Any) -> SearchOutcome:
        return await self.run(parse_search({"seed": 7} | settings), **options)

    async def run(self, settings: SearchSettings, **options: Any) -> SearchOutcome:
        surroundings: dict[str, Any] = {name: options.pop(name) for name in ENVIRONMENT & options.keys()}
        environment = SearchEnvironment(
            generator=self.through(self.generator),
            scorer=self.scorer,
            matcher=self.matcher,
            **({"context_tokens": 1000} | surroundings),
        )
        usual = {"search_id": "s1", "on_event": self.events.append, "tree": self.tree}
        return await run_search("What is it?", PROMPT, settings, environment, **(usual | options))

    def check_idle(self) -> None:
        """Checks that nothing is left behind."""
        self.tree.check()
        assert self.generator.live == set()


def search(
    settings: dict[str, Any],
    order: int = 0,
    variety: int | None = None,
    short_of_memory: int | None = None,
    **options: Any,
) -> tuple[Bench, SearchOutcome]:
    """Runs a whole search with its own ports and tree."""

    async def main() -> tuple[Bench, SearchOutcome]:
        bench = Bench(order, variety=variety)
        bench.generator.short_of_memory = short_of_memory
        outcome = await bench.search(settings, **options)
        bench.check_idle()
        return bench, outcome

    return asyncio.run(main())
