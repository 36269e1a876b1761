"""The generation engine: writes the branches of expand calls on one vLLM engine.

It owns the engine and the registry of its branches, knows nothing of Ray, and is what the Generator
deployment, the benchmarks and the tests have in common.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from vllm import AsyncEngineArgs, RequestOutput, SamplingParams
from vllm.config import KVTransferConfig
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from deployments.engines.arguments import engine_args
from deployments.engines.counters import EngineCounters
from deployments.engines.encoding import ChatEncoder
from deployments.engines.engine_calls import EngineCall, EngineCallError, Finished, NeverFits, Output, RequestRefused
from deployments.engines.grants import grant
from deployments.engines.lifecycle import EngineLifecycle, StartedEngine, engine_tokenizer
from deployments.engines.request_queue import RequestQueue
from deployments.engines.settings import GeneratorSettings
from deployments.engines.step_splitter import StepSplitter, StepStop
from kvstore.memory.clamp import KVClamp, StepLengths
from kvstore.memory.geometry import KVGeometry
from kvstore.memory.ledger import KVLedger, Prefix
from search.errors import GeneratorError, GeneratorRefused, PathTooLarge
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
    WrittenSequence,
    branch_seed,
)
from search.token_beam import TokenBeamSettings, token_beam_search
from search.tree import NodeId, StepEnd

HEARTBEAT_S = 5.0
"""The longest silence of a call while its engine is at work."""
GROUP_S = 0.004
"""How long finished children wait for others: a message costs as much as a good part of a small model's step."""


class _Wanted(NamedTuple):
    """Which child a request writes, how, and what earlier requests for it have written."""

    parent: NodeId
    child: int
    params: SamplingParams
    begun: "_Written"
    waited: bool = False
    """Whether an earlier request had to wait for KV memory."""


class _Written(NamedTuple):
    """What the requests for one child have written, one going on where the other stopped."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    """None unless asked for."""
    cached_tokens: int = 0
    """Of the first request: what the others find cached was written here."""


class _Part(NamedTuple):
    """What a call asks for below one node: either ``full`` or ``branches`` is empty."""

    full: tuple[Child, ...]
    """Children for which the context has no room."""
    prefix: Prefix | None
    """``token_ids`` as the clamp wants them, where there is one."""
    token_ids: tuple[int, ...]
    branches: Sequence[_Wanted]


@dataclass(frozen=True)
class _Running(StartedEngine):
    """A started engine and what was derived from its model."""

    chat: ChatEncoder
    splitter: StepSplitter
    eos: int | None
    """The tokenizer's end of the sequence."""
    block_size: int
    """Tokens per KV block."""
    clamp: KVClamp | None


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
        self._lengths = {condition: StepLengths() for condition in StopCondition}

    def _arguments(self) -> AsyncEngineArgs:
        return engine_args(self._settings, runner="generate", kv_transfer=self._kv_transfer)

    def _derive(self, engine: AsyncLLM, geometry: KVGeometry) -> _Running:
        tokenizer = engine_tokenizer(engine)
        splitter = StepSplitter(tokenizer, self._settings.step_delimiter, _eos_ids(engine, tokenizer))
        eos = tokenizer.eos_token_id if isinstance(tokenizer.eos_token_id, int) else None
        counters = EngineCounters.of(engine)
        block_size = engine.vllm_config.cache_config.block_size
        clamps = self._settings.clamp != "off" and geometry.groups
        clamp = KVClamp(KVLedger.of(counters.usable_blocks, geometry)) if clamps else None
        if clamp is not None:
            counters.on_step = clamp.stepped
        queue = RequestQueue(self._settings.max_num_seqs, clamp)
        return _Running(engine, counters, queue, ChatEncoder(tokenizer), splitter, eos, block_size, clamp)

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """Streams the finished children in groups; see ``search.ports.Generator``.

        Groups are empty where nothing was finished for ``HEARTBEAT_S`` and the engine is at work.

        A branch whose prefix already fills the context comes back as an empty step cut off by LENGTH.

        Raises:
            GeneratorRefused: the engine will not take a request of it, or has another model than it names.
            GeneratorError: the engine failed, or the deadline passed.
        """
        if request.model not in ("", self._settings.served_name):
            raise GeneratorRefused(f"this replica has the model {self._settings.served_name!r}, not {request.model!r}")
        try:
            async with self._call(request) as call:
                parts = self._parts(request)
                given_back = self._submit(call, request, parts)
                now = [child for part in parts for child in part.full] + given_back
                if now:
                    yield ChildGroup(tuple(now), self._headroom)
                while call.pending:
                    finished = await call.wait(HEARTBEAT_S)
                    if not finished:
                        if not self.silent_s:
                            yield ChildGroup((), self._headroom)
                        continue
                    if call.pending:
                        await asyncio.sleep(GROUP_S)
                        finished += call.take()
                    self._record(finished, request.stop_condition)
                    if children := [child for done in finished if (child := self._child(call, request, done))]:
                        yield ChildGroup(tuple(children), self._headroom)
        except EngineCallError as error:
            raise _told(error) from error

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """Token-level beam search; see ``search.token_beam``.

        Raises:
            GeneratorRefused: the engine will not take a request of it.
            GeneratorError: the engine failed, or the deadline passed.
        """
        running = self._running
        try:
            async with self._call(request) as call:
                steps = _NextTokens(call, request.settings)
                try:
                    found = await token_beam_search(steps, request.prompts, request.settings, running.eos)
                finally:
                    self._written_tokens += steps.generated_tokens
        except EngineCallError as error:
            raise _told(error) from error
        rows = (
            tuple(WrittenSequence(running.splitter.text(sequence.token_ids), sequence) for sequence in row)
            for row in found
        )
        return TokenBeamReply(tuple(rows), steps.generated_tokens)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Prompt ids of ``role``/``content`` messages, ready for the first step.

        Raises:
            ValueError: not valid Unicode, or refused by the chat template.
        """
        return self._running.chat.encode_chat(messages)

    async def _touch(self, name: str, deadline_s: float) -> None:
        """Generates one token."""
        prompt = ExpandItem((), (next(iter(self._running.splitter.stop.token_ids), 0),), (Branch(0, 0, 1),))
        greedy = Sampling(temperature=0.0)
        request = ExpandRequest(name, (prompt,), greedy, StopCondition.STEP, Lane.DEMAND, deadline_s)
        async for _ in self.expand(request):
            pass

    @property
    def pressure(self) -> float:
        """The greater of its batch's and its KV memory's."""
        clamp = self._running.clamp
        if clamp is None:
            return super().pressure
        return max(super().pressure, clamp.pressure)

    def stats(self) -> dict[str, int]:
        """The engine's counters and this one's: ``written_tokens`` by finished requests,
        ``discarded_tokens`` in aborted branches; together the engine's ``generated_tokens``;
        ``recomputed_tokens`` of paths, of which some engine had the KV before; KV blocks
        that are reserved; and branches that waited for KV memory or were given back."""
        running = self._running
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
            "calls": self._open_calls,
            "written_tokens": self._written_tokens,
            "discarded_tokens": self._discarded_tokens,
            "recomputed_tokens": self._recomputed_tokens,
        }

    @asynccontextmanager
    async def _call(self, request: ExpandRequest | TokenBeamRequest) -> AsyncIterator[EngineCall[Any]]:
        """An open call on the engine."""
        running = self._running
        self._open_calls += 1
        try:
            async with EngineCall[Any](running.engine, running.queue, request, self._discard) as call:
                yield call
        finally:
            self._open_calls -= 1

    @property
    def _headroom(self) -> Headroom:
        """What the replica can still afford."""
        running = self._running
        told, clamp = running.counters.headroom, running.clamp
        free = told.free_blocks if clamp is None else clamp.ledger.free
        return Headroom(free, told.total_blocks, told.running, told.waiting + running.queue.queued)

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        left = [f"{self._open_calls} calls are open"] if self._open_calls else []
        return [*left, *await super().check_integrity(settle_s)]

    def _submit(self, call: EngineCall[_Wanted], request: ExpandRequest, parts: Sequence[_Part]) -> list[Child]:
        """Queues all branches, or under ``clamp: shrink`` those for which there is KV memory. Returns the others,
        without steps."""
        lengths = self._lengths[request.stop_condition]
        shrinks = self._settings.clamp == "shrink" and self._running.clamp is not None

        def queue(expansion: int, index: int, needed: bool) -> bool:
            part = parts[expansion]
            branch = part.branches[index]
            growth = lengths.expected(branch.params.max_tokens or 1)
            return call.submit(
                branch,
                part.token_ids,
                branch.params,
                prefix=part.prefix,
                growth=growth,
                reserve=shrinks,
                optional=not needed,
            )

        asked = [len(part.branches) for part in parts]
        least = [expansion.least for expansion in request.expansions] if shrinks else asked
        queued = grant(asked, least, queue)
        given_back = [
            Child(branch.parent, branch.child, (), 0)
            for part, count in zip(parts, queued, strict=True)
            for branch in part.branches[count:]
        ]
        self._given_back += len(given_back)
        return given_back

    def _parts(self, request: ExpandRequest) -> list[_Part]:
        """What is asked for below each node of a call."""
        template, running = self._sampling_params(request), self._running
        parts: list[_Part] = []
        for parent, token_ids, branches, _ in request.expansions:
            prefix = running.clamp.prefix(token_ids, request.cache_salt) if running.clamp else None
            room = running.context - len(token_ids)
            if room <= 0:
                step = running.splitter.step((), cut_off=True)
                full = tuple(Child(parent, branch.index, (step,), 0) for branch in branches)
                parts.append(_Part(full, prefix, token_ids, ()))
                continue
            wanted: list[_Wanted] = []
            for branch in branches:
                params = copy(template)
                params.max_tokens = min(branch.max_tokens, room)
                if request.sampling.temperature > 0:
                    params.seed = branch.seed
                wanted.append(_Wanted(parent, branch.index, params, _Written()))
            parts.append(_Part((), prefix, token_ids, wanted))
        return parts

    def _sampling_params(self, request: ExpandRequest) -> SamplingParams:
        stop = self._running.splitter.stop if request.stop_condition is StopCondition.STEP else StepStop((), ())
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
        )
        params.skip_clone = True  # every branch gets a copy of its own here already
        return params

    def _child(self, call: EngineCall[_Wanted], request: ExpandRequest, done: Finished[_Wanted]) -> Child | None:
        """The child of a finished request; None where another goes on with it, because it has written no step yet."""
        output, wanted = done.output, done.label
        wanted = wanted._replace(waited=wanted.waited or done.waited)
        assert isinstance(output, RequestOutput)
        completion = output.outputs[0]
        cut_off = completion.finish_reason != "stop"
        written = _joined(wanted.begun, output)
        splitter = self._running.splitter
        if request.stop_condition is StopCondition.SOLUTION:
            steps = splitter.split(output.prompt_token_ids or (), written.token_ids, cut_off, written.logprobs)
        else:
            step = splitter.step(written.token_ids, cut_off, written.logprobs)
            if step.end is StepEnd.DELIMITER and splitter.is_blank(step.text):
                left = wanted.params.max_tokens - len(completion.token_ids)
                if left > 0:
                    self._go_on(call, output, wanted._replace(begun=written), left)
                    return None
                step = step._replace(end=StepEnd.LENGTH)
            steps = (step,)
        return Child(wanted.parent, wanted.child, steps, written.cached_tokens, wanted.waited)

    def _go_on(self, call: EngineCall[_Wanted], output: RequestOutput, wanted: _Wanted, left: int) -> None:
        """Asks for the rest of a child, at most ``left`` tokens. Each request writes one at least, so it ends."""
        params = copy(wanted.params)
        params.max_tokens = left
        if params.seed is not None:
            # Not the seed of the tokens before: it would draw the same random numbers again.
            params.seed = branch_seed(params.seed, (), len(wanted.begun.token_ids))
        prefix = [*(output.prompt_token_ids or ()), *output.outputs[0].token_ids]
        growth = self._lengths[StopCondition.STEP].expected(left)
        call.submit(wanted._replace(params=params), prefix, params, growth=growth)

    def _record(self, finished: Sequence[Finished[_Wanted]], stop_condition: StopCondition) -> None:
        block_size = self._running.block_size
        for wanted, output, _ in finished:
            assert isinstance(output, RequestOutput)
            written = len(output.outputs[0].token_ids)
            self._written_tokens += written
            self._lengths[stop_condition].add(written)
            if wanted.parent:
                # Only whole blocks are kept, and the engine computes a prompt's last token in any case.
                whole = (len(output.prompt_token_ids or ()) - 1) // block_size * block_size
                self._recomputed_tokens += max(0, whole - (output.num_cached_tokens or 0))

    def _discard(self, output: Output) -> None:
        assert isinstance(output, RequestOutput)
        self._discarded_tokens += len(output.outputs[0].token_ids)


class _NextTokens:
    """`search.token_beam.NextTokens` on one call: every prefix is a request for one token."""

    def __init__(self, call: EngineCall[int], settings: TokenBeamSettings) -> None:
        self.generated_tokens = 0
        self._call = call
        # One object for the whole call: what it says is the same for every token of every beam.
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
            alone = Prefix((), len(prefix)) if self._params.skip_reading_prefix_cache else None
            self._call.submit(number, prefix, self._params, prefix=alone)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        found: list[dict[int, float]] = []
        for future in futures:
            output = await future
            assert isinstance(output, RequestOutput)
            self.generated_tokens += len(output.outputs[0].token_ids)
            rows = output.outputs[0].logprobs
            if not rows:
                raise EngineCallError("the engine gave no log-probabilities")
            found.append({token: each.logprob for token, each in rows[0].items()})
        return found

    async def _read(self) -> None:
        """Hands what finishes to whoever waits for it: all prompts share the call."""
        try:
            while self._waiting:
                for done in await self._call.wait():
                    future = self._waiting.pop(done.label)
                    if not future.done():  # nobody waits any more
                        future.set_result(done.output)
        except EngineCallError as error:
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # looked at: whoever waited may be gone


def _told(error: EngineCallError) -> GeneratorError:
    if isinstance(error, NeverFits):
        return PathTooLarge(str(error))
    return GeneratorRefused(str(error)) if isinstance(error, RequestRefused) else GeneratorError(str(error))


def _joined(begun: _Written, output: RequestOutput) -> _Written:
    """What was written before and what one more request wrote."""
    completion = output.outputs[0]
    logprobs = None
    if completion.logprobs is not None:
        rows = zip(completion.token_ids, completion.logprobs, strict=True)
        logprobs = (*(begun.logprobs or ()), *(row[token].logprob for token, row in rows))
    cached = begun.cached_tokens if begun.token_ids else output.num_cached_tokens or 0
    return _Written((*begun.token_ids, *completion.token_ids), logprobs, cached)


def _eos_ids(engine: AsyncLLM, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokenizer's end token and those of the model's generation config."""
    also = engine.model_config.try_get_generation_config().get("eos_token_id") or ()
    ids = {tokenizer.eos_token_id, *((also,) if isinstance(also, int) else also)}
    return frozenset(token for token in ids if isinstance(token, int))
