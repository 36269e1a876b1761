"""The generation engine: writes the branches of expand calls on one vLLM engine.

It owns the engine and the queue of its branches, and knows nothing of Ray: the Generator deployment, the benchmarks and
the tests all use it.
"""

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

from transformers import PreTrainedTokenizerBase
from vllm import AsyncEngineArgs, RequestOutput, SamplingParams
from vllm.config import KVTransferConfig
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM

from deployments.engines.arguments import engine_args
from deployments.engines.cores import cpu_threads
from deployments.engines.counters import EngineCounters
from deployments.engines.encoding import ChatEncoder
from deployments.engines.engine_calls import (
    Aborts,
    EngineCall,
    EngineCallError,
    NeverFits,
    Output,
    RequestRefused,
)
from deployments.engines.errors import EngineStartError
from deployments.engines.grants import grant_order
from deployments.engines.lifecycle import EngineLifecycle, StartedEngine, engine_tokenizer
from deployments.engines.programs import ProgramRunner
from deployments.engines.reasoning import marks_of
from deployments.engines.request_queue import Ending, EngineRequest, RequestQueue
from deployments.engines.segments import (
    Draft,
    GivenTokens,
    Segment,
    Task,
    Until,
    behind_program,
    first_segment,
    following,
)
from deployments.engines.settings import GeneratorSettings
from deployments.engines.step_splitter import StepSplitter
from deployments.engines.tool_parsers import CallParser, ToolParserError, call_marks
from deployments.engines.write_ahead import CPU, GPU, SearchAhead, WriteAhead
from kvstore.memory.clamp import KVClamp, StepLengths
from kvstore.memory.geometry import KVGeometry
from kvstore.memory.ledger import KVLedger, Prefix
from search.answers.programs import output_block
from search.errors import GeneratorError, GeneratorRefused, PathTooLarge, SchemaRefused
from search.ports import (
    Branch,
    Child,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    Headroom,
    Lane,
    Sampling,
    StopCondition,
    TokenBeamReply,
    TokenBeamRequest,
    ToolRequest,
    ToolUse,
    WrittenSequence,
    branch_seed,
)
from search.token_beam import TokenBeamSettings, token_beam_search
from search.tools.fair_slots import Requester
from search.tools.settling import settled
from search.tree import StepEnd, begins_paths

Parameters: TypeAlias = Callable[..., SamplingParams]
"""Sampling parameters of a call by segment; see `GenerationEngine._sampling_params`."""

HEARTBEAT_S = 5.0
"""Longest time between two messages of an ``expand`` call while its engine is at work."""
COUNT_S = 0.1
"""The same once a child has finished, where the search wants to know the number of tokens of the others."""
GROUP_S = 0.004
"""How long a finished child waits for others to share its message: sending one takes a good part of the time of a small
model's engine step."""


@dataclass(frozen=True)
class _Running(StartedEngine):
    """A started engine and what was derived from its model."""

    chat: ChatEncoder
    splitter: StepSplitter
    marks: GivenTokens
    """The marks of the model's thinking, as it may be given them."""
    eos: int | None
    """The tokenizer's end-of-sequence token."""
    block_size: int
    """Tokens per KV block."""
    clamp: KVClamp | None
    write_ahead: WriteAhead
    aborts: Aborts
    """Of requests that were written ahead."""


class GenerationEngine(EngineLifecycle[_Running]):
    """One vLLM engine that writes steps; its requests are branches."""

    failure = GeneratorError
    requests_are = "branches"
    _settings: GeneratorSettings

    def __init__(self, settings: GeneratorSettings, kv_transfer: KVTransferConfig | None = None) -> None:
        super().__init__(settings)
        self._kv_transfer = kv_transfer
        self._open_calls = 0
        self._written_tokens = 0
        self._discarded_tokens = 0
        self._recomputed_tokens = 0
        self._given_back = 0
        self._lengths = {until: StepLengths() for until in Until}
        self._programs = ProgramRunner()

    def _arguments(self) -> AsyncEngineArgs:
        return engine_args(self._settings, runner="generate", kv_transfer=self._kv_transfer, unused=self._unused)

    def _derive(self, engine: AsyncLLM, geometry: KVGeometry) -> _Running:
        tokenizer = engine_tokenizer(engine, self._settings)
        if self._settings.tool_parser is not None:
            try:
                CallParser(self._settings.tool_parser, tokenizer)
            except ToolParserError as error:
                raise EngineStartError(f"{self._settings.model!r}: tool_parser: {error}") from error
        if engine.vllm_config.structured_outputs_config.backend == "xgrammar":
            # vLLM's front would parse the schema of a call for each of its branches, on this event loop. Schemas were
            # compiled before they came here (`deployments.service.schemas`), and the engine's own compiler refuses
            # what it cannot read.
            engine.input_processor.structured_outputs_config = None
        try:
            marks = marks_of(self._settings.reasoning, tokenizer)
        except ValueError as error:
            raise EngineStartError(f"generator.reasoning: {error}") from error
        calls = call_marks(self._settings.tool_parser, tokenizer)
        eos_ids = _eos_ids(engine, tokenizer)
        splitter = StepSplitter(tokenizer, self._settings.step_delimiter, eos_ids, marks, calls)
        eos = tokenizer.eos_token_id if isinstance(tokenizer.eos_token_id, int) else None
        counters = EngineCounters.of(engine)
        block_size = engine.vllm_config.cache_config.block_size
        clamps = self._settings.clamp != "off" and geometry.groups
        clamp = KVClamp(KVLedger.of(counters.usable_blocks, geometry)) if clamps else None
        queue = RequestQueue(self._settings.max_num_seqs, clamp)
        counters.on_step = queue.stepped
        setting = self._settings.write_ahead
        if self._settings.clamp == "shrink":
            setting = "off"  # What a search gets would depend on the memory that this takes.
        device = CPU if current_platform.is_cpu() else GPU
        if current_platform.is_cpu() and cpu_threads(self._settings) > 1:
            # No steps under `auto`: the reward model's engine uses the same cores, which have no time left.
            device = device._replace(least_turn_s=math.inf)
        aborts = Aborts(engine)
        write_ahead = WriteAhead(queue, setting, self._lengths, aborts.begin, device)
        chat = ChatEncoder(tokenizer, marks, calls)
        given = GivenTokens(*chat.given_tokens) if marks else GivenTokens()
        return _Running(engine, counters, queue, chat, splitter, given, eos, block_size, clamp, write_ahead, aborts)

    async def expand(
        self, request: ExpandRequest, alone: bool = False, canary: bool = False
    ) -> AsyncGenerator[ChildGroup, None]:
        """Streams the finished children in groups; see ``search.ports.Generator``.

        A group is empty where no child has finished for ``HEARTBEAT_S`` and the engine is at work.

        A branch whose prefix already fills the context comes back as an empty step cut off by LENGTH.

        ``alone``, ``canary``: see `EngineCall`.

        Raises:
            GeneratorRefused: the engine refuses a request of the call, or has another model than the call names.
            SchemaRefused: it refuses a request with a JSON schema.
            GeneratorError: the engine failed, or the deadline passed.
        """
        if request.model not in ("", self._settings.served_name):
            raise GeneratorRefused(
                f"this replica serves the model {self._settings.served_name!r}, not {request.model!r}"
            )
        started, parameters = self._running, cache(partial(self._sampling_params, request))
        if not request.expansions:
            unused = await started.write_ahead.release(request.search_id, started.aborts.sent)
            yield ChildGroup((), self._headroom, unused)
            return
        try:
            with started.write_ahead.call(
                request, parameters(Until(request.stop_condition), bool(request.json_schema))
            ) as ahead:
                async with self._call(request, alone, canary) as call:
                    unwritten = self._submit(call, request, parameters, ahead)
                    if ahead is not None:
                        ahead.give_up_rest()
                    if unwritten:
                        yield ChildGroup(tuple(unwritten), self._headroom)
                    over: list[tuple[Child, EngineRequest]] = []  # children that end with a program
                    counts, heartbeat_s = request.counts_unfinished, HEARTBEAT_S
                    while call.pending or over:
                        finished = await call.wait(heartbeat_s)
                        if not (finished or over):
                            if not self.silent_s:
                                unfinished = self._least_tokens(call) if counts else 0
                                yield ChildGroup((), self._headroom, unfinished_tokens=unfinished)
                            continue
                        if counts:
                            heartbeat_s = COUNT_S
                        self._record(finished)  # before it waits: it may be cancelled then
                        if call.pending:
                            await asyncio.sleep(GROUP_S)
                            more = call.take()
                            self._record(more)
                            finished += more
                        written = [
                            (child, done)
                            for done in finished
                            if (child := self._child(call, request, parameters, done, over))
                        ]
                        written += over
                        over.clear()
                        if written:
                            unused = ahead.take_unused_tokens() if ahead is not None else 0
                            samples = ahead.samples_at_last() if ahead is not None and not call.pending else 0
                            children, unfinished = tuple(child for child, _ in written), 0
                            if counts and call.pending:
                                unfinished = self._least_tokens(call)
                            yield ChildGroup(children, self._headroom, unused, samples, unfinished)
                        if ahead is not None:
                            # Not before: starting requests takes time, and the children are needed now.
                            ahead.wrote((child, _path(done)) for child, done in written)
        except EngineCallError as error:
            if request.json_schema and isinstance(error, RequestRefused) and not isinstance(error, NeverFits):
                raise SchemaRefused(str(error)) from error
            raise _as_search_error(error) from error

    async def token_beam(self, request: TokenBeamRequest, alone: bool = False) -> TokenBeamReply:
        """Token-level beam search; see ``search.token_beam``, and `EngineCall` for ``alone``.

        Raises:
            GeneratorRefused: the engine refuses a request of the call.
            GeneratorError: the engine failed, or the deadline passed.
        """
        running = self._running
        try:
            async with self._call(request, alone) as call:
                steps = _NextTokens(call, request.settings)
                try:
                    found = await token_beam_search(steps, request.prompts, request.settings, running.eos)
                finally:
                    self._written_tokens += steps.generated_tokens
        except EngineCallError as error:
            raise _as_search_error(error) from error
        rows = (
            tuple(WrittenSequence(running.splitter.text(sequence.token_ids), sequence) for sequence in row)
            for row in found
        )
        recomputed = max(0, steps.computed_tokens - sum(map(len, request.prompts)))
        return TokenBeamReply(tuple(rows), steps.generated_tokens, recomputed)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Prompt ids of ``role``/``content`` messages, ready for the first step.

        Raises:
            ValueError: a text is not valid Unicode, or the chat template refuses the messages.
        """
        return self._running.chat.encode_chat(messages)

    async def _touch(self, name: str, deadline_s: float) -> None:
        """Generates one token."""
        prompt = ExpandItem((), (next(iter(self._running.splitter.stop.token_ids), 0),), (Branch(0, 0, 1),))
        greedy = Sampling(temperature=0.0)
        request = ExpandRequest(name, (prompt,), greedy, StopCondition.STEP, Lane.DEMAND, deadline_s)
        async for _ in self.expand(request, canary=True):
            pass

    @property
    def pressure(self) -> float:
        """The greater of the pressures on the batch and on KV memory."""
        clamp = self._running.clamp
        if clamp is None:
            return super().pressure
        return max(super().pressure, clamp.pressure)

    def stats(self) -> dict[str, int]:
        """The engine's counters, and besides: ``written_tokens`` of finished requests and ``discarded_tokens`` of
        aborted branches, together the engine's ``generated_tokens``; ``recomputed_tokens`` of paths whose KV some
        engine had before; reserved KV blocks; and branches that waited for KV memory or were given back."""
        running = self._running
        ahead = running.write_ahead.counts
        clamp, clamped = running.clamp, {}
        if clamp is not None:
            clamped = {
                "reserved_blocks": clamp.ledger.reserved,
                "branches_held_back": running.queue.waited,
                "withheld_blocks": clamp.ledger.withheld,
                "branches_given_back": self._given_back,
            }
        return {
            **super().stats(),
            **clamped,
            **ahead,
            "calls": self._open_calls,
            "written_tokens": self._written_tokens,
            "discarded_tokens": self._discarded_tokens + ahead["ahead_unused_tokens"],
            "recomputed_tokens": self._recomputed_tokens,
        }

    @asynccontextmanager
    async def _call(
        self, request: ExpandRequest | TokenBeamRequest, alone: bool, canary: bool = False
    ) -> AsyncIterator[EngineCall[Any]]:
        """An open call on the engine."""
        running = self._running
        self._open_calls += 1
        try:
            engine, queue = running.engine, running.queue
            async with EngineCall[Any](engine, queue, request, self._discard, alone=alone, canary=canary) as call:
                yield call
        finally:
            self._open_calls -= 1

    @property
    def _headroom(self) -> Headroom:
        """Free KV blocks and numbers of requests, sent with every reply."""
        running = self._running
        reported, clamp = running.counters.headroom, running.clamp
        free = reported.free_blocks if clamp is None else clamp.ledger.free
        return Headroom(free, reported.total_blocks, reported.running, reported.waiting + running.queue.queued)

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        left = [f"{self._open_calls} calls are open"] if self._open_calls else []
        # What is written ahead for a search is given up only a while after its end.
        await settled(self._running.write_ahead.check_integrity, settle_s)
        left += await super().check_integrity(settle_s)
        return left + self._running.write_ahead.check_integrity()

    def shutdown(self) -> None:
        super().shutdown()
        self._programs.close()

    def _least_tokens(self, call: EngineCall[Draft]) -> int:
        """The least number of tokens that a branch has whose child was not sent yet; 0 if one has not begun, or waits
        for a program."""
        if call.works:
            return 0
        states = self._running.engine.output_processor.request_states
        least = []
        for request in call.left:
            state = None if request.collector is None else states.get(request.collector.request_id)
            if request.ending is Ending.FINISHED:
                written = len(request.output.outputs[0].token_ids)
            elif state is None or state.detokenizer is None:
                return 0
            else:
                written = state.detokenizer.num_output_tokens()
            least.append(request.label.written + written)
        return min(least, default=0)

    def _submit(
        self, call: EngineCall[Draft], request: ExpandRequest, parameters: Parameters, ahead: SearchAhead | None
    ) -> list[Child]:
        """Queues all branches, or under ``clamp: shrink`` those for which there is KV memory. Returns children
        for the others: without steps for a branch that is given back, with an empty step where the prefix already fills
        the context.
        """
        running, clamp = self._running, self._running.clamp
        shrinks = self._settings.clamp == "shrink" and clamp is not None
        full = [item for item in request.expansions if len(item.prefix) >= running.context]
        items = [item for item in request.expansions if len(item.prefix) < running.context]
        prefixes = [clamp.prefix(item.prefix, request.cache_salt) if clamp else None for item in items]
        asked = [len(item.branches) for item in items]
        least = [item.least for item in items] if shrinks else asked
        given_back: list[Child] = []
        too_long = [Child(item.parent, branch.index, (), 0) for item in full for branch in item.branches]
        short_of_memory: set[int] = set()
        for number, index in grant_order(asked, least):
            item, branch = items[number], items[number].branches[index]
            draft = self._draft(request, item, branch)
            child, segment = draft.child, draft.segment
            if segment.max_tokens < 1:
                too_long.append(child)
                continue
            params = copy(parameters(segment.until, segment.grammar))
            params.max_tokens = segment.max_tokens
            if request.sampling.temperature > 0:
                params.seed = branch.seed
            begun = ahead.adopt(item.parent, branch.index, item.prefix, params) if ahead else None
            if begun is not None:
                call.take_over(draft._replace(child=child._replace(ahead=True)), begun)
            elif number in short_of_memory or not call.submit(
                draft,
                (*item.prefix, *segment.given) if segment.given else item.prefix,
                params,
                prefix=None if segment.given else prefixes[number],
                growth=self._lengths[segment.until].expected(params.max_tokens),
                reserve=shrinks,
                optional=index >= least[number],
            ):
                short_of_memory.add(number)
                given_back.append(child)
        self._given_back += len(given_back)
        step = running.splitter.step((), cut_off=True)
        return [child._replace(steps=(step,)) for child in too_long] + given_back

    def _draft(self, request: ExpandRequest, item: ExpandItem, branch: Branch) -> Draft:
        """A branch with its first segment begun."""
        running = self._running
        thought = request.thought if begins_paths(item.parent) else None  # Below the first step, it is over.
        room, grammar = running.context - len(item.prefix), bool(request.json_schema)
        task = Task(Until(request.stop_condition), branch.max_tokens, room, thought, grammar, running.marks)
        if request.tool:
            task = task._replace(tool=True, solution=item.solution, room=min(room, item.room))
        segment = first_segment(task)
        logprobs = () if request.logprobs else None
        return Draft(Child(item.parent, branch.index, (), 0), task, segment, logprobs=logprobs).began(segment)

    def _sampling_params(self, request: ExpandRequest, until: Until, grammar: bool) -> SamplingParams:
        """Parameters of a segment, but for seed and length."""
        stop = self._running.splitter.stop_at(until, request.tool is not None)
        schema = StructuredOutputsParams(json=request.json_schema) if grammar else None
        if schema is not None:
            schema._backend = self._running.engine.vllm_config.structured_outputs_config.backend
        params = SamplingParams(
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            top_k=request.sampling.top_k,
            min_p=request.sampling.min_p,
            stop_token_ids=list(stop.token_ids),
            stop=list(stop.strings),
            include_stop_str_in_output=bool(stop.strings),
            detokenize=bool(stop.strings),
            output_kind=RequestOutputKind.FINAL_ONLY,
            logprobs=0 if request.logprobs else None,
            structured_outputs=schema,
        )
        params.skip_clone = True  # they are copied for every branch
        return params

    def _child(
        self,
        call: EngineCall[Draft],
        request: ExpandRequest,
        parameters: Parameters,
        done: EngineRequest,
        over: list[tuple[Child, EngineRequest]],
    ) -> Child | None:
        """The child of a finished request; None where another request continues it, or a program runs. If no request
        follows the program, the child comes to ``over``."""
        before: Draft = done.label
        completion, splitter = done.output.outputs[0], self._running.splitter
        logprobs = None
        if completion.logprobs is not None:
            logprobs = [
                row[token].logprob for token, row in zip(completion.token_ids, completion.logprobs, strict=True)
            ]
        child = before.child
        if not before.written:  # Later requests do not count: this replica wrote what they find in its cache.
            child = child._replace(cached_tokens=done.output.num_cached_tokens or 0)
        child = child._replace(waited=child.waited or done.waited)
        draft = before.wrote(completion.token_ids, logprobs)._replace(child=child)
        cut_off = completion.finish_reason != "stop"
        ending = splitter.ending(draft, cut_off)
        if request.tool and draft.segment.until is Until.PROGRAM and ending.end is StepEnd.DELIMITER:
            call.begin(self._run_program(call, request.tool, parameters, draft, done, over))
            return None
        segment = following(draft, ending)
        if segment is not None:
            self._continue(call, parameters, draft.began(segment), done)
            return None
        prompt = done.token_ids[: len(done.token_ids) - len(before.token_ids)]
        return child._replace(steps=splitter.steps(prompt, draft, ending, cut_off))

    async def _run_program(
        self,
        call: EngineCall[Draft],
        tool: ToolRequest,
        parameters: Parameters,
        draft: Draft,
        done: EngineRequest,
        over: list[tuple[Child, EngineRequest]],
    ) -> None:
        """Runs the program with which a draft ends, and continues the branch behind its output."""
        running, path = self._running, _path(done)
        prefix = len(path) - len(draft.token_ids)
        solution = prefix + draft.thought if draft.thought else draft.task.solution
        requester = Requester(done.cache_salt, done.search_id, done.lane.flex)
        run = await self._programs.run(tool, running.splitter.text(path[solution:]), requester)
        try:
            output = tuple(running.chat.encode_text(output_block(run.output)))
        except ValueError:
            run = run._replace(output="ValueError: the output is not valid text\n", failed=True)
            output = tuple(running.chat.encode_text(output_block(run.output)))
        segment = behind_program(draft, output)
        use = draft.child.tool
        use = ToolUse(
            use.calls + 1,
            use.errors + run.failed,
            use.limits + run.timed_out,
            use.tokens + (len(output) if segment is not None else 0),
        )
        draft = draft._replace(child=draft.child._replace(tool=use))
        if segment is not None:
            self._continue(call, parameters, draft.began(segment), done)
            return
        ending = running.splitter.ending(draft, cut_off=True)
        steps = running.splitter.steps(path[:prefix], draft, ending, cut_off=True)
        over.append((draft.child._replace(steps=steps), done))

    def _continue(self, call: EngineCall[Draft], parameters: Parameters, draft: Draft, done: EngineRequest) -> None:
        """Submits a request for the next segment of a branch. Each request writes at least one token, so this ends."""
        segment: Segment = draft.segment
        params = copy(parameters(segment.until, segment.grammar))
        params.max_tokens = segment.max_tokens
        if done.params.seed is not None:
            # A new seed: the one of the earlier tokens would draw the same random numbers again.
            params.seed = branch_seed(done.params.seed, (), len(draft.token_ids) - len(segment.given))
        growth = self._lengths[segment.until].expected(segment.max_tokens)
        call.submit(draft, (*_path(done), *segment.given), params, growth=growth)

    def _record(self, finished: Sequence[EngineRequest]) -> None:
        block_size = self._running.block_size
        for done in finished:
            draft: Draft = done.label
            written = len(done.output.outputs[0].token_ids)
            self._written_tokens += written
            self._lengths[draft.segment.until].add(written)
            if not begins_paths(draft.child.parent):
                # Only whole blocks are cached, and the engine computes a prompt's last token in any case.
                whole = (len(done.token_ids) - 1) // block_size * block_size
                self._recomputed_tokens += max(0, whole - (done.output.num_cached_tokens or 0))

    def _discard(self, output: Output) -> None:
        assert isinstance(output, RequestOutput)
        self._discarded_tokens += len(output.outputs[0].token_ids)


class _NextTokens:
    """`search.token_beam.NextTokens` on one call: every prefix is a request for one token."""

    def __init__(self, call: EngineCall[int], settings: TokenBeamSettings) -> None:
        self.generated_tokens = 0
        self.computed_tokens = 0
        """Tokens of the prefixes that the engine computed, where the settings skip the prefix cache."""
        self._call = call
        # One object for the whole call: the parameters are the same for every token of every beam.
        self._params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=2 * settings.width,
            detokenize=False,
            skip_reading_prefix_cache=settings.skip_reading_prefix_cache,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._params.skip_clone = True
        self._waiting: dict[int, asyncio.Future[Output]] = {}
        self._numbers = itertools.count()
        self._reader: asyncio.Task[None] | None = None

    async def next_tokens(self, prefixes: Sequence[Sequence[int]], count: int) -> list[dict[int, float]]:
        futures: list[asyncio.Future[Output]] = []
        for prefix in prefixes:
            number = next(self._numbers)
            future = self._waiting[number] = asyncio.get_running_loop().create_future()
            futures.append(future)
            unshared = Prefix((), len(prefix)) if self._params.skip_reading_prefix_cache else None
            self._call.submit(number, prefix, self._params, prefix=unshared)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        found: list[dict[int, float]] = []
        for prefix, future in zip(prefixes, futures, strict=True):
            output = await future
            assert isinstance(output, RequestOutput)
            self.generated_tokens += len(output.outputs[0].token_ids)
            if self._params.skip_reading_prefix_cache:
                self.computed_tokens += len(prefix)
            rows = output.outputs[0].logprobs
            if not rows:
                raise EngineCallError("the engine returned no log-probabilities")
            found.append({token: each.logprob for token, each in rows[0].items()})
        return found

    async def _read(self) -> None:
        """Hands each output to the future that waits for it: all prompts share the call."""
        try:
            while self._waiting:
                for done in await self._call.wait():
                    future = self._waiting.pop(done.label)
                    if not future.done():  # a future whose waiter was cancelled is done
                        future.set_result(done.output)
        except EngineCallError as error:
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # marks it as retrieved: the waiter may be gone


def _path(done: EngineRequest) -> tuple[int, ...]:
    """The token ids of a finished request: its prompt's, and those it wrote."""
    return (*done.token_ids, *done.output.outputs[0].token_ids)


def _as_search_error(error: EngineCallError) -> GeneratorError:
    if isinstance(error, NeverFits):
        return PathTooLarge(f"{error}; generator.kv_cache_memory_bytes sets their number")
    return GeneratorRefused(str(error)) if isinstance(error, RequestRefused) else GeneratorError(str(error))


def _eos_ids(engine: AsyncLLM, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The end-of-sequence tokens of the tokenizer and of the model's generation config."""
    also = engine.model_config.try_get_generation_config().get("eos_token_id") or ()
    ids = {tokenizer.eos_token_id, *((also,) if isinstance(also, int) else also)}
    return frozenset(token for token in ids if isinstance(token, int))
