"""What comes of requests that are given up while LMCache loads their prefix, with vLLM and LMCache alone.

    python docs/upstream/given_up_requests.py MODEL

Nothing of Banyan is imported: it is for who maintains either of the two. MODEL is a folder of any small causal model;
its weights do not matter. One engine on a CPU or a GPU, one cache server. A prompt is stored, dropped from the engine's
own cache, and asked for again by eight requests that are cancelled within 20 ms, some of them between their lookup and
their allocation, others while they load. It says whether the engine lives, and, when nothing runs any more, how much of
what the server holds is read-locked.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

BLOCK = 32
PREFIX_BLOCKS = 8
ROUNDS = 25
SETTLE_S = 10.0
DEADLINE_S = 300.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def cache_server() -> Iterator[tuple[int, int, int]]:
    """The ports of a server, of its engines and of its HTTP, and its process id."""
    port, http = free_port(), free_port()
    sizes = [
        "--l1-size-gb",
        "0.25",
        "--l1-init-size-gb",
        "1",
        "--chunk-size",
        str(BLOCK),
        "--eviction-policy",
        "LRU",
    ]
    command = [sys.executable, "-m", "lmcache.v1.multiprocess.http_server", "--host", "127.0.0.1", *sizes]
    command += ["--port", str(port), "--http-host", "127.0.0.1", "--http-port", str(http)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    memory(http)
                    break
                except OSError:
                    if time.monotonic() > deadline or server.poll() is not None:
                        raise
                    time.sleep(0.1)
            yield port, http, server.pid
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def memory(http: int) -> dict[str, int]:
    """What the server says of its first tier."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://127.0.0.1:{http}/status", timeout=5) as reply:
        counts: dict[str, int] = json.load(reply)["storage_manager"]["l1_manager"]
        return counts


def engine_of(model: str, port: int, settings: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """An engine with the server at ``port``. ``settings``: more of LMCache's; ``arguments``: more of the engine's."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    transfer = KVTransferConfig(
        kv_connector="LMCacheMPConnector",
        kv_role="kv_both",
        kv_connector_module_path="lmcache.integration.vllm.lmcache_mp_connector",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": port,
            "lmcache.mp.mp_transfer_mode": "lmcache_driven",
            "lmcache.mp.mq_timeout": 10.0,
            **(settings or {}),
        },
    )
    args = AsyncEngineArgs(
        model=model,
        skip_tokenizer_init=True,
        max_model_len=512,
        block_size=BLOCK,
        kv_cache_memory_bytes=64 << 20,
        enforce_eager=True,
        kv_transfer_config=transfer,
        **arguments,
    )
    return AsyncLLM.from_engine_args(args)


async def main(model: str) -> int:
    from vllm import SamplingParams, __version__
    from vllm.v1.engine.exceptions import EngineDeadError

    print(f"vllm {__version__}, lmcache {version('lmcache')}, CPython {sys.version.split()[0]}")
    with cache_server() as (port, http, _):
        engine = engine_of(model, port)
        dice, requests = random.Random(8), iter(range(1 << 30))
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)

        async def ask(token_ids: list[int]) -> None:
            prompt: Any = {"prompt_token_ids": token_ids}
            async for _ in engine.generate(prompt, params, f"request-{next(requests)}"):
                pass

        async def give_up_some() -> None:
            token_ids = [dice.randrange(5, 300) for _ in range(PREFIX_BLOCKS * BLOCK + 1)]
            await ask(token_ids)
            await asyncio.sleep(0.3)  # until it is stored
            await engine.reset_prefix_cache()
            asks = [asyncio.create_task(ask(token_ids)) for _ in range(8)]
            await asyncio.sleep(dice.uniform(0.0, 0.02))
            for each in asks:
                each.cancel()
            ended = await asyncio.gather(*asks, return_exceptions=True)
            if died := [each for each in ended if isinstance(each, EngineDeadError)]:
                raise died[0]

        lives = True
        try:
            for _ in range(ROUNDS):
                await give_up_some()
        except EngineDeadError:
            lives = False
        print(f"after {next(requests)} requests the engine {'lives' if lives else 'is dead'}")
        await asyncio.sleep(SETTLE_S)
        counts = memory(http)
        locked, held = counts["read_locked_count"], counts["total_object_count"]
        print(f"{SETTLE_S:.0f} s later {locked} of {held} objects are read-locked")
        engine.shutdown()
    return int(locked > 0 or not lives)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    sys.exit(asyncio.run(asyncio.wait_for(main(parser.parse_args().model), DEADLINE_S)))
