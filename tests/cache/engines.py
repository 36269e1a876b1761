"""Small engines that are clients of a cache server."""

import asyncio
import gc
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deployments.engines.template import attach, engines_forked_from
from kvstore.connector.arguments import connector_config
from kvstore.server.cache_server import CacheAddress
from kvstore.settings import CacheSettings
from tests.cache.servers import BLOCK, SETTINGS

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


VOCABULARY = 384


def prompt(seed: int, blocks: int = 8) -> list[int]:
    """Token ids of ``blocks`` whole blocks and one more token, which is always computed."""
    return [(seed * 7919 + i * (seed + 31)) % (VOCABULARY - 1) + 1 for i in range(blocks * BLOCK + 1)]


class Reply(NamedTuple):
    tokens: list[int]
    cached: int
    """Prompt tokens from a cache, the engine's own or LMCache."""


class Engine:
    """One vLLM engine in processes of its own, used from a test's event loop."""

    def __init__(self, llm: "AsyncLLM") -> None:
        self.llm = llm
        self._requests = 0

    @property
    def external_hits(self) -> int:
        from deployments.engines.counters import EngineCounters

        return EngineCounters.of(self.llm).figures.external_hits

    async def ask(
        self,
        token_ids: list[int],
        max_tokens: int = 8,
        began: asyncio.Event | None = None,
        salt: str | None = None,
        **parameters: Any,
    ) -> Reply:
        """``parameters``: sampling parameters other than those of greedy decoding."""
        from vllm import SamplingParams

        self._requests += 1
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, **parameters)
        tokens: list[int] = []
        cached = 0
        prompt_: Any = {"prompt_token_ids": token_ids} | ({"cache_salt": salt} if salt else {})
        async for output in self.llm.generate(prompt_, params, f"request-{id(self)}-{self._requests}"):
            tokens, cached = list(output.outputs[0].token_ids), output.num_cached_tokens or 0
            if began is not None:
                began.set()
        return Reply(tokens, cached)

    async def compute(self, token_ids: list[int], max_tokens: int = 8, salt: str | None = None) -> Reply:
        """Like `ask`, with an empty prefix cache in the engine: what the server does not have is computed, and stored
        there."""
        while not await self.llm.reset_prefix_cache():
            await asyncio.sleep(0.05)
        return await self.ask(token_ids, max_tokens, salt=salt)


@cache
def fork_engines() -> ExitStack:
    """From here on, this process's engines are forked from a template. Threads start them, so not one by one; the
    stack is kept by the cache."""
    stack = ExitStack()
    stack.enter_context(engines_forked_from(attach(os.environ)))
    return stack


@contextmanager
def engine_of(
    model: Path,
    address: CacheAddress,
    settings: CacheSettings = SETTINGS,
    kv_bytes: int = 32 << 20,
    identity: str = "these weights",
    **arguments: Any,
) -> Iterator[Engine]:
    """``arguments``: engine arguments other than the defaults."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from deployments.engines.counters import EngineCounters

    fork_engines()
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            block_size=BLOCK,
            max_model_len=512,
            max_num_seqs=32,
            enforce_eager=True,
            kv_cache_memory_bytes=kv_bytes,
            kv_transfer_config=connector_config(address, settings, identity),
            **{
                "max_num_batched_tokens": 2048,
                "enable_chunked_prefill": False,
                "enable_prefix_caching": True,
                **arguments,
            },
        ),
        stat_loggers=[EngineCounters],
    )
    engine = Engine(llm)
    try:
        yield engine
    finally:
        with warnings.catch_warnings(action="ignore"):  # about sockets that vLLM leaves to the garbage collector
            llm.shutdown()
            del engine.llm, llm
            gc.collect()


@contextmanager
def together(*engines: AbstractContextManager[Engine]) -> Iterator[list[Engine]]:
    """Starts the engines at the same time: each takes one core for twenty seconds."""
    import vllm.v1.engine.async_llm  # noqa: F401  # which two threads had better not do at once

    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        yield list(threads.map(stack.enter_context, engines))
