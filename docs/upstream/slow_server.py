"""What an LMCache server that stands still for some seconds keeps, with vLLM and LMCache alone.

    python docs/upstream/slow_server.py MODEL

Nothing of Banyan is imported: it is for who maintains either of the two. MODEL is a folder of any small causal model;
its weights do not matter. One engine on a CPU or a GPU with 96 blocks, one cache server, which copies from the engine's
blocks itself. While a request writes, the server is stopped (SIGSTOP). The engine notices by its heartbeats, takes the
stores that it has asked for as ended, and gives their blocks to other requests; then the server goes on (SIGCONT) and
copies what is in those blocks now. It says what the engine answers with the keys and values that the server has kept,
and with those that it computes.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
from importlib.metadata import version
from typing import Any

from given_up_requests import BLOCK, DEADLINE_S, cache_server, engine_of

HEARTBEAT_S = 2.0
BLOCKS = 96
ROUNDS = 3


async def main(model: str) -> int:
    from vllm import SamplingParams, __version__

    print(f"vllm {__version__}, lmcache {version('lmcache')}, CPython {sys.version.split()[0]}")
    with cache_server() as (port, _, server):
        settings = {"lmcache.mp.heartbeat_interval": HEARTBEAT_S, "lmcache.mp.save_decode_cache": True}
        engine = engine_of(model, port, settings, num_gpu_blocks_override=BLOCKS)
        dice, requests = random.Random(11), iter(range(1 << 30))

        def some(blocks: int) -> list[int]:
            return [dice.randrange(5, 300) for _ in range(blocks * BLOCK + 1)]

        async def ask(
            token_ids: list[int], tokens: int, salt: str | None = None, began: asyncio.Event | None = None
        ) -> tuple[list[int], float, int]:
            """What is written, its log-probability, and how much of the prompt was cached."""
            params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=0)
            prompt: Any = {"prompt_token_ids": token_ids} | ({"cache_salt": salt} if salt else {})
            tokens_written, logprob, cached = [], 0.0, 0
            async for output in engine.generate(prompt, params, f"request-{next(requests)}"):
                [written] = output.outputs
                tokens_written, logprob = list(written.token_ids), written.cumulative_logprob
                cached = output.num_cached_tokens or 0
                if began is not None:
                    began.set()
            return tokens_written, logprob, cached

        async def path_while_it_stands_still() -> list[int]:
            began, path = asyncio.Event(), some(4)
            writing = asyncio.create_task(ask(path, 8 * BLOCK, began=began))
            await began.wait()
            os.kill(server, signal.SIGSTOP)
            try:
                path += (await writing)[0]
                await asyncio.sleep(2 * HEARTBEAT_S + 1)
                for _ in range(2):
                    await asyncio.gather(*(ask(some(8), 1) for _ in range(8)))
            finally:
                os.kill(server, signal.SIGCONT)
            await asyncio.sleep(2 * HEARTBEAT_S + 1)
            return path

        wrong = 0
        for number in range(ROUNDS):
            path = await path_while_it_stands_still()
            await engine.reset_prefix_cache()
            tokens, computed, _ = await ask(path, 8, salt="computed")
            found_tokens, found, cached = await ask(path, 8)
            wrong += tokens != found_tokens or abs(found - computed) > 0.01
            print(f"{number + 1}: computed {tokens} ({computed:.4f}),")
            print(f"   with {cached} of {len(path)} tokens from the server {found_tokens} ({found:.4f})")
        print(f"{wrong} of {ROUNDS} differ")
        engine.shutdown()
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    sys.exit(asyncio.run(asyncio.wait_for(main(parser.parse_args().model), DEADLINE_S)))
