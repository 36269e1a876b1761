"""The generation engine: writes the branches of expand calls on one vLLM engine.

It owns the engine and the registry of its branches, knows nothing of Ray, and is what the Generator
deployment, the benchmarks and the tests have in common.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase
from vllm import AsyncEngineArgs, RequestOutput, SamplingParams
from vllm.config import KVTransferConfig
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from deployments.engines.arguments import engine_args
from deployments.engines.counters import EngineCounters
from deployments.engines.encoding import ChatEncoder
from deployments.engines.engine_calls import EngineCall, EngineCallError, Finished, Output
from deployments.engines.lifecycle import EngineLifecycle, StartedEngine, engine_tokenizer
from deployments.engines.settings import GeneratorSettings
from deployments.engines.step_splitter import StepCutter
from search.errors import GeneratorError
from search.ports import (
    Branch,
    Child,
    ChildGroup,
    ExpandRequest,
    Expansion,
    Extent,
    Lane,
    Sampling,
    TokenBeamReply,
    TokenBeamRequest,
    WrittenSequence,
)
from search.token_beam import TokenBeamSettings, token_beam_search
from search.tree import NodeId


class _Wanted(NamedTuple):
    """Which child a request writes."""

    parent: NodeId
    child: int


@dataclass(frozen=True)
class _Running(StartedEngine):
    """A started engine and what was derived from its model."""

    chat: ChatEncoder
    cutter: StepCutter
    eos: int | None
    """The tokenizer's end of the sequence."""


class GenerationEngine(EngineLifecycle[_Running]):
    """One vLLM engine that writes steps; its requests are branches."""

    failure = GeneratorError
    requests_are = "branches"
    _settings: GeneratorSettings

    def __init__(self, settings: GeneratorSettings, kv_transfer: KVTransferConfig | None = None) -> None:
        super().__init__(settings)
        self._kv_transfer = kv_transfer
        self._calls: set[EngineCall[_Wanted] | EngineCall[int]] = set()
        self._written_tokens = 0
        self._discarded_tokens = 0

    def _arguments(self) -> AsyncEngineArgs:
        return engine_args(self._settings, runner="generate", kv_transfer=self._kv_transfer)

    def _derive(self, engine: AsyncLLM) -> _Running:
        tokenizer = engine_tokenizer(engine)
        cutter = StepCutter(tokenizer, self._settings.step_delimiter, _eos_ids(engine, tokenizer))
        eos = tokenizer.eos_token_id
        counters = EngineCounters.of(engine)
        return _Running(engine, counters, ChatEncoder(tokenizer), cutter, eos if isinstance(eos, int) else None)

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """Streams the finished children in groups; see ``search.ports.Generator``.

        A branch whose prefix already fills the context comes back as an empty step cut off by LENGTH.

        Raises:
            GeneratorError: the engine failed, or the deadline passed.
        """
        running = self._running
        call = EngineCall[_Wanted](running.engine, self._registry, request.search_id, request.deadline_s, self._discard)
        self._calls.add(call)
        try:
            async with call:
                full = await self._submit(call, request)
                if full:
                    yield ChildGroup(full, running.counters.headroom)
                missing = sum(len(expansion.branches) for expansion in request.expansions) - len(full)
                while missing:
                    finished = await call.wait()
                    if call.pending and self._settings.group_ms:
                        await asyncio.sleep(self._settings.group_ms / 1000)
                        finished += call.take()
                    missing -= len(finished)
                    children = tuple(self._child(done, request.extent) for done in finished)
                    yield ChildGroup(children, running.counters.headroom)
        except EngineCallError as error:
            raise GeneratorError(str(error)) from error
        finally:
            self._calls.discard(call)

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """Token-level beam search; see ``search.token_beam``.

        Raises:
            GeneratorError: the engine failed, or the deadline passed.
        """
        running = self._running
        call = EngineCall[int](running.engine, self._registry, request.search_id, request.deadline_s, self._discard)
        steps = _NextTokens(call, request.settings)
        self._calls.add(call)
        try:
            async with call:
                found = await token_beam_search(steps, request.prompts, request.settings, running.eos)
        except EngineCallError as error:
            raise GeneratorError(str(error)) from error
        finally:
            self._calls.discard(call)
            self._written_tokens += steps.generated_tokens
        rows = (
            tuple(WrittenSequence(running.cutter.text(sequence.token_ids), sequence) for sequence in row)
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
        prompt = Expansion((), (next(iter(self._running.cutter.delimiter_ids), 0),), (Branch(0, 0, 1),))
        greedy = Sampling(temperature=0.0)
        request = ExpandRequest(name, (prompt,), greedy, Extent.STEP, Lane.DEMAND, deadline_s)
        async for _ in self.expand(request):
            pass

    def stats(self) -> dict[str, int]:
        """The engine's counters and this one's: ``written_tokens`` in children handed over,
        ``discarded_tokens`` in aborted branches; together the engine's ``generated_tokens``."""
        return {
            **super().stats(),
            "calls": len(self._calls),
            "written_tokens": self._written_tokens,
            "discarded_tokens": self._discarded_tokens,
        }

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        open_calls = [f"{len(self._calls)} calls are open"] if self._calls else []
        return [*open_calls, *await super().check_integrity(settle_s)]

    async def _submit(self, call: EngineCall[_Wanted], request: ExpandRequest) -> tuple[Child, ...]:
        """Hands all branches to the engine; returns those for which the context has no room."""
        template = self._sampling_params(request)
        running = self._running
        full: list[Child] = []
        for expansion in request.expansions:
            room = running.context - len(expansion.prefix)
            for branch in expansion.branches:
                if room <= 0:
                    step = running.cutter.step((), cut_off=True)
                    full.append(Child(expansion.parent, branch.index, (step,), 0))
                    continue
                params = copy(template)
                params.max_tokens = min(branch.max_tokens, room)
                if request.sampling.temperature > 0:
                    params.seed = branch.seed
                wanted = _Wanted(expansion.parent, branch.index)
                await call.submit(wanted, list(expansion.prefix), params, request.lane)
        return tuple(full)

    def _sampling_params(self, request: ExpandRequest) -> SamplingParams:
        stepwise = request.extent is Extent.STEP
        cutter = self._running.cutter
        by_string = stepwise and not cutter.delimiter_ids
        params = SamplingParams(
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            stop_token_ids=list(cutter.delimiter_ids) if stepwise else None,
            stop=[cutter.delimiter] if by_string else None,
            include_stop_str_in_output=by_string,
            detokenize=by_string,
            output_kind=RequestOutputKind.FINAL_ONLY,
            logprobs=0 if request.logprobs else None,
        )
        params.skip_clone = True  # every branch gets a copy of its own here already
        return params

    def _child(self, done: Finished[_Wanted], extent: Extent) -> Child:
        output = done.output
        assert isinstance(output, RequestOutput)
        completion = output.outputs[0]
        ids = completion.token_ids
        self._written_tokens += len(ids)
        cut_off = completion.finish_reason != "stop"
        cutter = self._running.cutter
        logprobs = None
        if completion.logprobs is not None:
            logprobs = [row[token].logprob for token, row in zip(ids, completion.logprobs, strict=True)]
        if extent is Extent.SOLUTION:
            steps = cutter.cut(ids, cut_off, logprobs)
        else:
            steps = (cutter.step(ids, cut_off, logprobs),)
        return Child(done.label.parent, done.label.child, steps, output.num_cached_tokens or 0)

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
            await self._call.submit(number, list(prefix), self._params)
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


def _eos_ids(engine: AsyncLLM, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokenizer's end token and those of the model's generation config."""
    also = engine.model_config.try_get_generation_config().get("eos_token_id") or ()
    ids = {tokenizer.eos_token_id, *((also,) if isinstance(also, int) else also)}
    return frozenset(token for token in ids if isinstance(token, int))
