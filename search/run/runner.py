"""Runs one search: a strategy against the ports, within a budget, inside the caller's own task.

All tasks of a search run in one task group, so cancelling the caller closes every stream and leaves nothing behind.
Calls are expensive, so they are batched: one generator call for all expansions of a round, one scorer call for all
children that arrived together.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import Any, ParamSpec

from search.answers.equivalence import WAIT_S
from search.answers.thoughts import open_thought as open_mark
from search.answers.voting import AnswerSelection
from search.budget import BudgetMeter
from search.errors import ContextsUnavailable, GeneratorError, LimitKind, PromptTooLong, SearchError
from search.ports import (
    Ahead,
    AheadSamples,
    ChildGroup,
    ExpandRequest,
    Lane,
    ScoreItem,
    ScoreRequest,
    StopCondition,
    ThoughtRequest,
)
from search.prompt import Prompt
from search.run.answer_selection import answering_paths, best_open_path, select_answer
from search.run.bill import path_tokens, sample_tokens
from search.run.contexts import Composer
from search.run.environment import SearchEnvironment
from search.run.kv_usage import KVUsage
from search.run.path_limits import PathLimits
from search.run.planning import Branches, Planner, expand_items, requested
from search.run.report import (
    ContextStarted,
    EventSink,
    RoundStarted,
    SearchCost,
    SearchFinished,
    SearchOutcome,
    SearchStarted,
    StepScored,
    StepsPruned,
    StopReason,
)
from search.run.results import Results
from search.run.scorer import SearchScorer
from search.run.step_hook import StepHook
from search.settings import SearchSettings, Thinking
from search.strategies.base import Expansion
from search.strategies.path_score import Aggregation, path_score
from search.tools.fair_slots import Requester
from search.tools.turns import Turns
from search.tree import NO_THOUGHT, ContextNode, Node, NodeStatus, Prefill, SearchTree

_P = ParamSpec("_P")
NO_PREFILL = Prefill()

UNLIMITED_S = 86_400.0
"""Deadline sent to the ports when the search has no time limit, seconds."""
SCORE_BATCH_WAIT_S = 0.25
"""Longest time that a scorer call waits for more steps to join its batch, seconds."""
GIVE_UP_S = 1.0
"""Longest wait at the end of a search for the tokens that were written ahead in vain, seconds."""
SELECT_S = 10.0
"""Time to read the answers that a search has even after its deadline, seconds. Less than the grace that its caller
allows."""


async def run_search(
    question: str,
    prompt: Prompt | Sequence[int],
    settings: SearchSettings,
    environment: SearchEnvironment,
    *,
    search_id: str,
    on_event: EventSink | None = None,
    tree: SearchTree | None = None,
    cache_salt: str = "",
    flex: bool = False,
    cost: SearchCost | None = None,
    prefill: Prefill = NO_PREFILL,
    json_schema: str = "",
    open_thought: str = "",
    messages: Any = None,
) -> SearchOutcome:
    """Searches for the answer to ``question``.

    Args:
        question: sent to the scorer; the generator sees only ``prompt``.
        prompt: what every path continues; token ids, the chat template applied, are one.
        search_id: identifies the search in calls to the ports; unique among running searches.
        on_event: called with every event; see ``EventSink``.
        tree: the tree to grow; a new one by default. Pass an empty tree to keep access to it if the search fails, or to
            replay another tree (`search.snapshot.replay_of`). Pass the tree of an earlier search
            (`search.snapshot.restore_tree`) to resume that search with its seed: with the same settings, it continues
            as the earlier search would have. Nodes in flight at that time are resumed: unwritten steps are requested
            again, unscored steps are scored. So are steps with neutral rewards that no decision has used yet.
        cache_salt: only searches with the same salt may reuse cache entries of this search.
        flex: whether its calls yield to those of other searches; the tree is the same.
        cost: a new object in which the cost is counted as it is spent. Pass one to read it during the search, or if
            the search fails.
        prefill: the beginning of every path, which is part of ``prompt``. The scorer reads it as the first steps, and
            the answer may be in it; the outcome's text comes after it. If ``settings.score_prefill``, its steps are
            scored once, and their rewards are part of every path's score.
        json_schema: a JSON schema, as JSON, that every path satisfies, for strategies that write whole solutions below
            the root. The answer of a path is then its whole text (`search.answers.json_answer`), and only equal
            answers are the same. Empty: no schema.
        open_thought: the mark of the thought that ``prompt`` leaves open, such as ``<think>``; empty: none
            (`search.answers.thoughts.open_thought`). Every path begins in that thought, in which neither answers nor
            stop texts count; ``extract_answer`` gets its text behind this mark. If thoughts are not told from steps,
            a ``json_schema`` holds from the first token on: such a path has no thought.
        messages: the chat of the question, for ``environment.compose``; only for strategies that have solutions read.

    Returns when every stream has ended or was closed.

    The same seed and the same results from the ports give the same tree, whatever the order of arrival. This holds for
    strategies that decide only when nothing is in flight (their docstrings say so), unless the wall clock or a
    generator error ends the search.

    Raises:
        PromptTooLong: the context has no room for a single token after the prompt.
        BudgetTooSmall: see `check_budget`.
        ContextsUnavailable: the strategy has solutions read, and the environment has no ``compose`` or there is a
            ``prefill``, which such a prompt has no place for.
        LimitReached: a limit was reached before there was a path to answer with.
        GeneratorError: the generator failed and there are no candidates yet.
        ScorerError: the scorer failed and the environment's ``fallback`` is ``fail``.
        HookError: the step hook failed and its fallback is ``fail``.
        ValueError: ``tree`` was grown with another seed than ``settings`` ask for.
    """
    prompt = Prompt.of(prompt)
    if prompt.size >= environment.context_tokens:
        raise PromptTooLong(f"the prompt has {prompt.size} tokens, the context holds {environment.context_tokens}")
    if settings.strategy.starts_contexts and (environment.compose is None or prefill.text):
        raise ContextsUnavailable(settings.strategy.name)
    thinks = bool(environment.thinking_context) and settings.thinking is Thinking.WHOLE
    scores_solutions = thinks and not environment.scores_thinking
    limits = _path_limits(prompt, settings, environment, prefill, open_thought)
    grown = SearchTree() if tree is None else tree
    if not len(grown):
        check_budget(prompt, settings, environment, prefill=prefill, open_thought=open_thought)
    emit = on_event or (lambda event: None)
    counted = SearchCost() if cost is None else cost
    grown.open_thought = "" if json_schema and not limits.thinking_context else open_thought
    grown.scores_solutions = scores_solutions
    grown.answers_without_thought = bool(json_schema)
    search = _Search(
        question,
        settings,
        environment,
        limits,
        search_id,
        emit,
        grown,
        cache_salt,
        flex,
        counted,
        prefill,
        json_schema,
        messages,
    )
    try:
        try:
            reason = await search.grow()
        finally:
            search.give_up()
            await search.give_up_ahead()
        return await search.conclude(reason)
    finally:
        search.forget_errors()


def check_budget(
    prompt: Prompt | Sequence[int],
    settings: SearchSettings,
    environment: SearchEnvironment,
    *,
    prefill: Prefill = NO_PREFILL,
    open_thought: str = "",
) -> None:
    """Checks that ``budget.total_tokens`` suffices for the prompt and the whole first round, each branch of which may
    become as long as it is allowed to, and for what the search keeps to finish a path. The arguments are those of
    `run_search`.

    Raises:
        BudgetTooSmall: it does not.
    """
    budget, prompt = settings.budget, Prompt.of(prompt)
    if (total := budget.total_tokens) is None or (budget.tokens is not None and prompt.size + budget.tokens <= total):
        return
    limits = _path_limits(prompt, settings, environment, prefill, open_thought)
    tree = SearchTree()
    Planner(tree, settings, limits, BudgetMeter(budget)).check_fits(settings.strategy.select(tree), total)


def _path_limits(
    prompt: Prompt,
    settings: SearchSettings,
    environment: SearchEnvironment,
    prefill: Prefill,
    open_thought: str,
) -> PathLimits:
    context = environment.thinking_context if settings.thinking is Thinking.WHOLE else 0
    if environment.thought_is_over(prompt.token_ids) or (
        prefill.text.strip() and not open_mark(open_thought + prefill.text)
    ):
        context = 0  # The solution has begun.
    return PathLimits(
        prompt,
        prompt.size,
        environment.context_tokens,
        settings.max_path_tokens,
        settings.strategy.max_depth,
        settings.thinking_tokens if context else 0,
        context,
    )


class _Search:
    """The state of one search."""

    def __init__(
        self,
        question: str,
        settings: SearchSettings,
        environment: SearchEnvironment,
        limits: PathLimits,
        search_id: str,
        emit: EventSink,
        tree: SearchTree,
        cache_salt: str,
        flex: bool,
        cost: SearchCost,
        prefill: Prefill,
        json_schema: str,
        messages: Any,
    ) -> None:
        self._cost = cost
        self._question = question
        self._cache_salt = cache_salt
        self._flex = flex
        self._strategy = settings.strategy
        self._logprobs = settings.logprobs or settings.strategy.needs_logprobs
        self._generator = environment.generator
        self._model = environment.model
        self._prices = environment.prices
        self._scorer = SearchScorer(environment.scorer, environment.fallback, cost)
        self._solver = environment.solver
        self._hook = environment.step_hook
        self._remark = environment.remark
        self._matcher = None if json_schema else environment.matcher
        self._embedding = environment.text_embedding
        self._json_schema = json_schema
        self._tool = environment.tool if settings.tools and not json_schema else None
        self._scores_prefill = settings.score_prefill
        self._search_id = search_id
        self._emit = emit
        self._tree = tree
        if not len(tree):
            tree.merges_siblings = settings.strategy.merge_siblings
        if not len(tree) and tree.replays is None:
            tree.seed = secrets.randbits(32) if settings.seed is None else settings.seed
        elif settings.seed not in (None, tree.seed):
            raise ValueError(f"the tree was grown with seed {tree.seed}, the search asks for {settings.seed}")
        self._seed = tree.seed
        tree.prefill = prefill
        tree.extract_answer, tree.choice_of = environment.extract_answer, environment.choice_of
        if json_schema:
            tree.extract_answer, tree.canonical = environment.json_answer, str
        tree.stop = settings.stop
        self._meter = BudgetMeter(settings.budget.behind(limits.prompt_size))
        self._limits = limits
        self._max_step_tokens = settings.max_step_tokens
        self._closes_thoughts = settings.budget.thinking is not None
        self._composer: Composer | None = None
        if settings.strategy.starts_contexts or tree.contexts:
            self._composer = Composer(environment.compose, messages, tree, settings, limits)
        hooked = environment.step_hook is not None
        self._planner = Planner(tree, settings, limits, self._meter, hooked, self._composer)
        self._results = Results(tree, limits, self._meter, cost)
        self._kv_usage = KVUsage(tree, limits.prompt_size) if settings.kv_usage else None
        self._rounds = 0
        self._samples_ahead = 0
        """Number of solutions that the generator has begun and that the search has not requested."""
        self._arrived: list[Node] = []
        """Nodes that completed since the strategy's last ``observe``."""
        self._unscored: list[Sequence[Node]] = []
        """Queue of steps to score; each chain is the new steps of one path."""
        self._scoring = False
        self._received = asyncio.Event()
        """Set when children arrive and when a generator call ends."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._reason: StopReason | None = None
        self._failure: Exception | None = None
        self._generator_error: GeneratorError | None = None

    async def grow(self) -> StopReason:
        """Grows the tree until something ends the search."""
        self._emit(SearchStarted(self._search_id, self._strategy.name, self._seed))
        try:
            async with asyncio.timeout(self._seconds_left()), asyncio.TaskGroup() as group:
                await self._guarded(self._decide, group)
                for task in self._tasks:
                    task.cancel()
        except TimeoutError:
            self._reason = self._reason or StopReason.SECONDS
        if self._failure is not None:
            raise self._failure
        return self._reason or StopReason.FINISHED

    def give_up(self) -> None:
        """Marks every node still in flight as failed."""
        for node in self._tree.live:
            self._tree.fail(node)

    async def give_up_ahead(self) -> None:
        """Has the generator give up the solutions that it has begun ahead, however the search ended, and counts their
        tokens. Waits ``GIVE_UP_S`` at most."""
        if self._samples_ahead:
            # In an empty context: Serve cancels the calls of a request that was cancelled.
            releasing = asyncio.create_task(self._release_ahead(), context=Context())
            await asyncio.wait({releasing})  # If it is cancelled meanwhile, the task still ends by itself.

    def forget_errors(self) -> None:
        """Drops the stored exceptions. Their tracebacks refer back to this search: a reference cycle that would keep
        the tree alive until the garbage collector runs."""
        self._failure = self._generator_error = None

    async def conclude(self, reason: StopReason) -> SearchOutcome:
        """The outcome: answered by the candidates, or without a finished one by the paths that were finished with the
        rest of the budget, or by the best unfinished path."""
        candidates = self._strategy.candidates(self._tree)
        ends = await answering_paths(candidates, self._tree)
        alike = ends is not candidates
        if not ends and self._generator_error is not None:
            raise self._generator_error
        if not ends:
            ends = [await self._best_open_path(reason)]
        wait_s = min(WAIT_S, max(SELECT_S, self._deadline_s()))
        selection = await select_answer(ends, self._tree, self._strategy, self._matcher, wait_s, alike, self._embedding)
        sample = await sample_tokens(ends, self._tree, self._strategy, alike)
        outcome = SearchOutcome(
            search_id=self._search_id,
            seed=self._seed,
            tree=self._tree,
            selection=selection,
            text=self._tree.text_of(selection.node),
            stop_reason=reason,
            degraded=self._tree.degraded or self._cost.tool_limits > 0,
            cost=await self._counted(selection, sample),
            reader_votes=tuple(self._strategy.reader_votes(self._tree)),
        )
        self._emit(SearchFinished(outcome))
        return outcome

    async def _decide(self, group: asyncio.TaskGroup) -> None:
        """Asks the strategy after every change, until there is a reason to stop."""
        first_steps = True
        await self._score_prefill()
        if len(self._tree):
            await self._resume(group)
            first_steps = False
        while self._failure is None:
            self._changed.clear()
            turns = Turns()
            await self._observe()
            if not self._tree.in_flight:
                await turns.pass_on()
            if self._generator_error is not None:
                # Written steps are still scored: one of them may be the answer.
                if not self._tasks:
                    self._reason = StopReason.GENERATOR_ERROR
                    return
            elif self._strategy.finished(self._tree):
                self._reason = StopReason.FINISHED
                return
            else:
                expansions = self._strategy.select(self._tree)
                if not expansions and self._tree.in_flight == 0:
                    self._reason = StopReason.FINISHED
                    return
                if not self._tree.in_flight:
                    await turns.pass_on()
                try:
                    calls = await self._planner.plan(expansions)
                except PromptTooLong:
                    if not self._tree.terminals:
                        raise
                    # Not one solution fits into a prompt that shows it: the search answers with what it has.
                    self._cost.unread_sources += sum(len(each.reads.sources) for each in expansions if each.reads)
                    self._reason = StopReason.FINISHED
                    return
                if calls:
                    await self._round_begins(calls)
                for branches in calls:
                    self._start(group, self._expand, group, branches, first_steps)
                if not self._tasks:
                    self._reason = self._exhausted(expansions)
                    return
                first_steps = False
            await self._changed.wait()

    async def _score_prefill(self) -> None:
        """Scores the prefill's steps, if their rewards are part of path scores."""
        steps = self._tree.scored_prefill.steps
        last_only = self._strategy.aggregation is Aggregation.LAST
        if not steps or not self._scores_prefill or last_only or not self._strategy.is_scored:
            return
        [rewards], neutral = await self._scorer.rewards(self._score_request([ScoreItem(steps, len(steps))]))
        self._tree.root.prefill_rewards = tuple(rewards)
        self._tree.neutral += len(steps) if neutral else 0
        self._cost.scored_steps += len(steps)

    async def _observe(self) -> None:
        """Solves the strategy's problems, then passes it the nodes that have arrived."""
        turns = Turns()
        while not self._tree.in_flight and (problem := self._strategy.problem(self._tree)) is not None:
            self._tree.strategy_cache[problem] = await self._solver.solve(problem)
            await turns.pass_on()
        if not self._tree.in_flight:
            if self._remark is not None and (nodes := self._strategy.unremarked(self._tree)):
                remarks = await asyncio.gather(*(self._remark(self._tree.solution_of(node)) for node in nodes))
                self._tree.remarks |= zip((node.id for node in nodes), remarks, strict=True)
            self._strategy.prepare(self._tree)
            await turns.pass_on()
        arrived, self._arrived = self._arrived, []
        self._strategy.observe(self._tree, arrived)
        pruned, self._tree.newly_pruned = self._tree.newly_pruned, []
        if pruned:
            self._cost.wandering_paths += sum(node.status is NodeStatus.WANDERING for node in pruned)
            ids = tuple(node.id for node in pruned)
            self._emit(StepsPruned(ids, self._cost.generated_tokens, len(self._tree)))

    async def _resume(self, group: asyncio.TaskGroup) -> None:
        """Requests unwritten branches again and scores unscored steps of a tree that was grown before."""
        if self._composer is not None:
            await self._composer.resume()
            self._count(self._tree.contexts)
        calls, written = self._planner.resume()
        self._cost.written_steps, self._cost.generated_tokens = written.nodes, written.tokens
        self._cost.thinking_tokens = sum(node.step.thinking_tokens for node in self._tree.nodes if node.step)
        self._cost.wandering_paths = sum(node.status is NodeStatus.WANDERING for node in self._tree.nodes)
        await self._round_begins(calls)
        for branches in calls:
            self._start(group, self._expand, group, branches, False)
        self._pass_on(group, unscored_chains(self._tree))

    async def _round_begins(self, calls: Sequence[Branches]) -> None:
        if self._kv_usage is not None:
            await self._kv_usage.round_begins()
        if self._cost.contexts < len(self._tree.contexts):
            begun = self._tree.contexts[self._cost.contexts :]
            self._count(begun)
            for context in begun:
                sources, template = tuple(source.id for source in context.reading.sources), context.reading.template
                so_far = self._cost.generated_tokens, len(self._tree)
                self._emit(ContextStarted(context.id, sources, template, context.prompt_tokens, *so_far))
        if calls:
            self._rounds += 1
            self._emit(RoundStarted(self._rounds, sum(map(len, calls))))

    def _count(self, contexts: Sequence[ContextNode]) -> None:
        self._cost.contexts += len(contexts)
        self._cost.context_prompt_tokens += sum(context.prompt_tokens for context in contexts)
        self._cost.unread_sources += sum(context.unread for context in contexts)

    async def _expand(self, group: asyncio.TaskGroup, branches: Branches, first_steps: bool) -> None:
        """Has the generator write branches; they are scored as they arrive."""
        missing, began = len(branches), self._meter.seconds.usage
        self._tree.unfinished_tokens = 0
        self._cost.expand_calls += 1
        try:
            request = await self._expand_request(branches, first_steps)
            async with _closing(self._generator.expand(request)) as stream:
                async for arrived in stream:
                    missing -= await self._take(group, arrived, self._meter.seconds.usage - began)
                    if not missing:
                        self._leave_to_end()
            if missing:
                raise GeneratorError(f"the generator's stream ended with {missing} unfinished branches")
        except GeneratorError as error:
            if missing:
                # The missing children stay pending until the search ends. Otherwise a strategy would take the round
                # for complete and prune by it, which a search that resumes this tree could not undo.
                self._generator_error = error
        finally:
            self._received.set()

    async def _take(self, group: asyncio.TaskGroup, arrived: ChildGroup, seconds: float) -> int:
        """Enters children that arrived ``seconds`` after their call was made into the tree, and queues their steps for
        scoring. Returns the number of branches that the tree waited for."""
        if arrived.headroom is not None:
            self._results.saw(arrived.headroom)
        self._cost.unused_tokens += arrived.unused_tokens
        self._samples_ahead = arrived.samples_ahead
        unscored: list[Sequence[Node]] = []
        taken, turns = 0, Turns()
        for child in arrived.children:
            nodes = self._results.receive(child, seconds)
            if nodes is not None:
                taken += 1
            if nodes:
                # A node that represents no text of its own gets its reward with the sibling that does.
                being_scored = [node for node in nodes if node.first.status is NodeStatus.WRITTEN]
                self._arrive([node for node in nodes if node.first.status is not NodeStatus.WRITTEN])
                new = [node for node in being_scored if not (node.repeats or node.repeated_by)]
                unscored += [new] if new else []
            await turns.pass_on()
        # After the children: the count is of the branches that are still to come, without those of this group.
        if arrived.unfinished_tokens > self._tree.unfinished_tokens:
            self._tree.unfinished_tokens = arrived.unfinished_tokens
            self._changed.set()
        self._pass_on(group, unscored)
        return taken

    def _pass_on(self, group: asyncio.TaskGroup, chains: Sequence[Sequence[Node]]) -> None:
        """Queues chains for scoring; a step that the step hook has to see is queued when it has."""
        if self._hook is None:
            self._score(group, chains)
            return
        ready: list[Sequence[Node]] = []
        for chain in chains:
            seen = chain[:-1] if _awaits_hook(chain[-1]) else chain
            if seen is not chain:
                self._start(group, self._call_hook, group, self._hook, chain[-1])
            self._cost.unhooked_steps += sum(node.request is None or node.request.whole for node in seen)
            ready += [seen] if seen else []
        self._score(group, ready)

    async def _call_hook(self, group: asyncio.TaskGroup, hook: StepHook, node: Node) -> None:
        """Has the step hook see a step, and queues the step for scoring."""
        *path, step = self._tree.step_texts(node)
        requester = Requester(self._cache_salt, self._search_id, self._flex)
        effect = await hook.effect(self._question, tuple(path), step, requester)
        self._score(group, [[node]] if self._results.hooked(node, effect) else [])

    def _score(self, group: asyncio.TaskGroup, chains: Sequence[Sequence[Node]]) -> None:
        """Queues chains for scoring; each chain is the new steps of one path. Only one scorer call runs at a time, so
        a step is never scored before the steps above it."""
        self._unscored += chains
        self._received.set()
        if self._unscored and not self._scoring:
            self._scoring = True
            self._start(group, self._score_unscored)

    async def _enough_to_score(self) -> None:
        """Waits until at least as many chains are queued as branches are still being written or are at the step hook,
        at most ``SCORE_BATCH_WAIT_S``. Does not wait after an error of the generator: missing branches will not arrive.

        Every scorer call has a fixed cost, so batching saves calls. The wait is short because the scorer is idle
        meanwhile, and a deadline could find no step scored."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SCORE_BATCH_WAIT_S):
                while self._generator_error is None and len(self._unscored) < self._not_queued:
                    self._received.clear()
                    await self._received.wait()

    @property
    def _not_queued(self) -> int:
        """Number of nodes in flight that do not wait for their score. Use it while no scorer call runs."""
        return self._tree.in_flight - sum(map(len, self._unscored))

    async def _score_unscored(self) -> None:
        turns = Turns()
        while self._unscored:
            if self._strategy.is_scored:
                await self._enough_to_score()
            chains, self._unscored = self._unscored, []
            if not self._strategy.is_scored:
                for chain in chains:
                    self._arrive(self._results.complete(chain, [None] * len(chain), neutral=False))
                    await turns.pass_on()
                continue
            items, scored = [], []
            for chain in chains:
                if self._tree.scores_solutions and _is_all_thought(chain[-1]):
                    # There is no solution that the scorer could read.
                    self._arrive(self._results.complete(chain, [0.0], neutral=False))
                else:
                    items.append(ScoreItem(self._tree.step_texts(chain[-1]), len(chain), chain[-1].ends))
                    scored.append(chain)
                await turns.pass_on()
            if items:
                rewards, neutral = await self._scorer.rewards(self._score_request(items))
                for index, (chain, row) in enumerate(zip(scored, rewards, strict=True)):
                    self._arrive(self._results.complete(chain, row, neutral or index in rewards.unsure))
                    await turns.pass_on()
        self._scoring = False

    def _arrive(self, complete: Sequence[Node]) -> None:
        """Emits an event for each newly complete node and queues the node for the strategy's next ``observe``."""
        self._arrived += complete
        for node in complete:
            self._emit(self._scored(node))
        if complete:
            self._changed.set()

    def _start(
        self, group: asyncio.TaskGroup, work: Callable[_P, Awaitable[None]], *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        task = group.create_task(self._guarded(work, *args, **kwargs))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _guarded(self, work: Callable[_P, Awaitable[None]], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Keeps the first failure: the caller gets the exception itself, not an exception group."""
        try:
            await work(*args, **kwargs)
        except Exception as error:
            self._failure = self._failure or error

    def _leave_to_end(self) -> None:
        """Counts the current task as done: every branch of its stream has arrived. Cancelling it now would only make
        the port abort a finished call."""
        task = asyncio.current_task()
        if task is not None:
            self._done(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()

    async def _expand_request(self, branches: Branches, first_steps: bool) -> ExpandRequest:
        sampling = self._strategy.sampling
        if branches[0].is_lookahead:  # They are written greedily.
            sampling = sampling._replace(temperature=0.0)
        thought = self._thought(branches)
        return ExpandRequest(
            self._search_id,
            await expand_items(branches, self._limits, self._seed, self._tool is not None),
            sampling,
            StopCondition.SOLUTION if requested(branches[0]).whole else StopCondition.STEP,
            Lane.of(first_steps, self._flex),
            self._deadline_s(),
            self._logprobs,
            self._cache_salt,
            self._model,
            json_schema=self._json_schema,
            ahead=self._ahead(branches, thought),
            thought=thought,
            tool=self._tool,
            counts_unfinished=self._strategy.counts_unfinished,
        )

    def _thought(self, branches: Branches) -> ThoughtRequest | None:
        """How these branches think; None if they do not: below the root, the thought is over."""
        limits, tree = self._limits, self._tree
        if not limits.thinking_context or all(node.depth > 1 for node in branches):
            return None
        opened = bool(tree.thought_at(tree.root))
        whole = requested(branches[0]).whole
        solution = limits.solution_tokens(branches[0])  # `Planner` puts no others into the same call.
        if not whole:
            solution = min(self._max_step_tokens, solution)
        return ThoughtRequest(opened, limits.max_thinking_tokens, self._closes_thoughts, solution)

    async def _release_ahead(self) -> None:
        sampling, condition = self._strategy.sampling, StopCondition.SOLUTION
        request = ExpandRequest(self._search_id, (), sampling, condition, Lane.DEMAND, GIVE_UP_S)
        with suppress(GeneratorError, TimeoutError):
            async with asyncio.timeout(GIVE_UP_S), _closing(self._generator.expand(request)) as stream:
                async for group in stream:
                    self._cost.unused_tokens += group.unused_tokens

    def _ahead(self, branches: Branches, thought: ThoughtRequest | None) -> Ahead | AheadSamples | None:
        """What the generator has to know to write children of these ahead; None if none are to be expected."""
        if branches[0].is_lookahead:
            return None
        if (request := requested(branches[0])).whole:
            later = self._strategy.later_samples(self._tree)
            apart = thought is not None and thought.is_apart(bool(self._json_schema) or self._tool is not None)
            if later is None or apart or branches[0].context:  # How such a solution continues depends on its thought.
                return None
            fitting = int(min(later, self._meter.tokens.remaining / request.tokens))
            return AheadSamples(self._seed, self._tree.root.asked, fitting, request.tokens)
        expected = self._strategy.expected_children
        if expected is None or self._hook is not None:  # The hook may change a step that others would be written below.
            return None
        limits, tree = self._limits, self._tree
        parents = dict.fromkeys(node.parent for node in branches if node.parent is not None)
        thoughts = tuple((parent.id, mark) for parent in parents if (mark := tree.thought_at(parent)))
        context = branches[0].context
        if any(node.context is not context for node in branches):  # Their paths may have different lengths.
            return None
        tokens = limits.prompt_tokens(branches[0]) + limits.solution_tokens(branches[0])
        path = tokens, limits.max_depth + (0 if context is None else len(context.id))
        thinking = tuple((parent.id, parent.thought_tokens) for parent in parents if parent.thought_tokens)
        step, merges, most = self._max_step_tokens, tree.merges_siblings, limits.thinking_context
        return Ahead(self._seed, *expected, step, *path, merges, thoughts, thinking, most)

    def _score_request(self, items: Sequence[ScoreItem]) -> ScoreRequest:
        lane = Lane.of(False, self._flex)
        return ScoreRequest(self._search_id, self._question, tuple(items), self._deadline_s(), self._cache_salt, lane)

    def _scored(self, node: Node) -> StepScored:
        step = node.written_step
        return StepScored(
            node=node.id,
            reward=node.reward,
            score=path_score(node, self._strategy.aggregation),
            text=step.text if step else "",
            tokens=self._cost.generated_tokens,
            nodes=len(self._tree),
            terminal=node.ends,
            step_tokens=step.size if step else 0,
            logprob=step.logprob if step else None,
            prefix_tokens=self._limits.prompt_tokens(node) + (node.parent.path_tokens if node.parent else 0),
            cached_tokens=node.cached_tokens,
            repeats=node.repeats.id if node.repeats else None,
            repeated_by=tuple(sibling.id for sibling in node.repeated_by),
            hook=node.hook,
            thought=step.thought if step else NO_THOUGHT,
            given=step.given if step else (),
        )

    def _exhausted(self, expansions: Sequence[Expansion]) -> StopReason:
        limit = self._meter.exhausted()
        if not expansions or limit is None:
            raise SearchError(f"{self._strategy.name} is not finished and selects no expansions")
        return StopReason(limit.kind.value)

    async def _best_open_path(self, reason: StopReason) -> Node:
        node = await best_open_path(self._tree, self._strategy)
        if node is not None:
            return node
        if reason is StopReason.FINISHED:
            raise SearchError(f"{self._strategy.name} finished without a path")
        limits = {limit.kind: limit for limit in (self._meter.tokens, self._meter.nodes, self._meter.seconds)}
        raise limits[LimitKind(reason.value)].reached()

    async def _counted(self, selection: AnswerSelection[Node], sample_tokens: float) -> SearchCost:
        """The cost, completed with the figures known only at the end."""
        cost, usage = self._cost, self._kv_usage
        if usage is not None:
            await usage.search_ends()
            cost.kv_tokens_peak, cost.kv_tokens_sum = usage.by_path.peak, usage.by_path.sum
            cost.kv_node_tokens_peak, cost.kv_node_tokens_sum = usage.by_node.peak, usage.by_node.sum
        cost.nodes = len(self._tree)
        cost.repeated_steps = self._tree.repeated
        cost.answer_tokens = path_tokens(selection.node)
        cost.prompt_tokens = cost.prompt_tokens or self._limits.prompt_size  # a server that encodes it has told more
        cost.sample_tokens = round(sample_tokens, 1)
        cost.sample_seconds = round(self._results.pace.seconds(sample_tokens), 6)
        cost.add_up()
        self._prices.add_to(cost)
        cost.seconds = self._meter.seconds.usage
        return cost

    def _seconds_left(self) -> float | None:
        left = self._meter.seconds.remaining
        return left if left < UNLIMITED_S else None

    def _deadline_s(self) -> float:
        return max(0.0, min(UNLIMITED_S, self._meter.seconds.remaining))


def _awaits_hook(node: Node) -> bool:
    """Whether the step hook has to see a written step before it is scored: a step of its own, below which a path may
    grow and has not grown yet."""
    whole = node.request is None or node.request.whole
    return not (whole or node.ends or node.asked_below or node.hook is not None)


def _is_all_thought(node: Node) -> bool:
    """Whether the path ended in its thought or directly behind it; the node is then its only one."""
    return node.step is not None and node.step.thought.tokens > 0 and not node.step.solution


def unscored_chains(tree: SearchTree) -> list[list[Node]]:
    """The written, unscored nodes, as chains: the nodes of one path that follow each other directly."""
    chains: list[list[Node]] = []
    ending_in: dict[Node | None, list[Node]] = {}
    for node in sorted(tree.live, key=lambda node: node.serial):
        if node.status is NodeStatus.WRITTEN:
            chain = ending_in.pop(node.parent, [])
            if not chain:
                chains.append(chain)
            chain.append(node)
            ending_in[node] = chain
    return chains


@asynccontextmanager
async def _closing(stream: AsyncIterator[ChildGroup]) -> AsyncIterator[AsyncIterator[ChildGroup]]:
    """Closes a stream on exit, which aborts its unfinished branches at the replica."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
