"""LMCache between real engines: what one has read another need not, and losing the server costs time only."""

import asyncio
import gc
import itertools
import json
import os
import random
import select
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis

from cluster.launch.application import free_port
from kvstore import segments
from kvstore.cache_server import CacheAddress, CacheKeeper, CacheServer, CacheServerError, request_text
from kvstore.connector import QUIET_ENVIRONMENT, connector_config
from kvstore.server_figures import ServerFigures
from kvstore.settings import CacheSettings
from tests.debian import program

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

BLOCK = 32
VOCABULARY = 384
SETTINGS = CacheSettings(
    # The heartbeat's interval is its deadline too: a shorter one is missed on a busy machine, and a few probes as well.
    l1_size_gb=0.25,
    chunk_size=BLOCK,
    store="always",
    heartbeat_interval_s=5.0,
    mq_timeout_s=5,
    probe_interval_s=0.5,
    probe_failures=10,
)
pytestmark = [
    pytest.mark.timeout(600),
    # Those of vLLM and torch about themselves and each other are no errors of ours.
    pytest.mark.filterwarnings("default"),
]
WAIT_S = 180.0


def until(holds: Callable[[], bool], again: Callable[[], object] | None = None) -> None:
    """Wait for something that no process announces; fails after a bounded time.

    ``again`` is called every few seconds: a server that counted as unhealthy for a moment was sent nothing.
    """
    pause, deadline = threading.Event(), time.monotonic() + WAIT_S
    for tick in itertools.count(1):
        if holds():
            return
        assert time.monotonic() < deadline
        pause.wait(0.1)
        if again is not None and tick % 50 == 0:
            again()


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def l1(server: CacheServer) -> dict[str, int]:
    """Counts of the server's memory, by name."""
    counts: dict[str, int] = server.status()["storage_manager"]["l1_manager"]
    return counts


def objects(server: CacheServer) -> int:
    """That can be read: others are being written."""
    counts = l1(server)
    return counts["total_object_count"] - counts["staging_object_count"]


def registered(server: CacheServer) -> set[int]:
    """The engines that it knows; none while it does not answer."""
    try:
        return set(server.status()["registered_gpu_ids"])
    except CacheServerError:
        return set()


def lookups(server: CacheServer) -> int:
    """How often it was asked what it has of a prefix."""
    threading.Event().wait(0.5)  # it counts a moment later
    lines = request_text(server.address, "GET", "/metrics").splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("lmcache_mp_lookups_requests_total"))


def empty(server: CacheServer) -> None:
    """Clears until nothing is left: what is still being written when the server is told to clear, it keeps."""

    def emptied() -> bool:
        server.clear()
        return l1(server)["total_object_count"] == 0

    until(emptied)


def prompt(seed: int, blocks: int = 8) -> list[int]:
    """Token ids of that many whole blocks and one token more, which is always computed."""
    return [(seed * 7919 + i * (seed + 31)) % (VOCABULARY - 1) + 1 for i in range(blocks * BLOCK + 1)]


class TestServer:
    def test_it_answers_once_started_and_is_gone_once_stopped(self) -> None:
        server = CacheServer(SETTINGS)
        address = server.start()
        pid = server.pid
        assert pid is not None
        assert server.healthy()
        assert server.status()["chunk_size"] == BLOCK
        server.clear()
        assert server.start() == address
        assert server.pid == pid
        server.stop()
        assert not exists(pid)
        assert not server.alive()

    def test_it_shows_no_secret_of_its_owner(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BANYAN_API_KEYS", "a-secret")
        with CacheServer(SETTINGS) as server:
            process = Path(f"/proc/{server.pid}")
            assert b"LMCACHE_TRACK_USAGE=false" in (process / "environ").read_bytes()
            assert b"a-secret" not in (process / "environ").read_bytes() + (process / "cmdline").read_bytes()

    def test_the_log_says_why_it_does_not_start(self) -> None:
        settings = SETTINGS.model_copy(update={"l2_adapters": ({"type": "nothing-of-the-kind"},)})
        server = CacheServer(settings)
        with pytest.raises(CacheServerError, match="nothing-of-the-kind"):
            server.start()
        assert not server.alive()
        server.stop()

    def test_the_keeper_brings_a_killed_server_back_at_its_address(self) -> None:
        keeper = CacheKeeper(SETTINGS)
        try:
            address = keeper.start()
            first = keeper.server.pid
            assert first is not None
            killed = time.monotonic()
            os.kill(first, signal.SIGKILL)
            until(lambda: keeper.restarts == 1)
            # Or an engine whose heartbeat fell between would never know that it has to register again.
            assert time.monotonic() - killed > 2 * SETTINGS.heartbeat_interval_s
            assert keeper.server.healthy()
            assert keeper.server.address == address
            assert keeper.server.pid != first
        finally:
            keeper.stop()
        assert not keeper.server.alive()

    def test_the_keeper_replaces_a_server_that_hangs(self) -> None:
        settings = SETTINGS.model_copy(update={"probe_failures": 1, "stop_timeout_s": 0.5})
        keeper = CacheKeeper(settings)
        try:
            keeper.start()
            first = keeper.server.pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            until(lambda: keeper.restarts == 1)
            assert keeper.server.healthy()
            assert not exists(first)
        finally:
            keeper.stop()


class Reply(NamedTuple):
    tokens: list[int]
    cached: int
    """Prompt tokens taken from a cache, the engine's own or LMCache."""


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
        self, token_ids: list[int], max_tokens: int = 8, began: asyncio.Event | None = None, salt: str | None = None
    ) -> Reply:
        from vllm import SamplingParams

        self._requests += 1
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        tokens: list[int] = []
        cached = 0
        prompt_: Any = {"prompt_token_ids": token_ids} | ({"cache_salt": salt} if salt else {})
        async for output in self.llm.generate(prompt_, params, f"request-{id(self)}-{self._requests}"):
            tokens, cached = list(output.outputs[0].token_ids), output.num_cached_tokens or 0
            if began is not None:
                began.set()
        return Reply(tokens, cached)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 with random weights, no tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=512,
        max_position_embeddings=1024,
    )
    path = tmp_path_factory.mktemp("qwen2")
    random_model: Any = Qwen2ForCausalLM
    random_model(config).to(torch.float32).save_pretrained(path)
    written = json.loads((path / "config.json").read_text())
    assert written["hidden_size"] // written["num_attention_heads"] == 32
    return path


@pytest.fixture(scope="module")
def keeper() -> Iterator[CacheKeeper]:
    keeper = CacheKeeper(SETTINGS)
    keeper.start()
    yield keeper
    keeper.stop()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@contextmanager
def engine_of(
    model: Path,
    address: CacheAddress,
    settings: CacheSettings = SETTINGS,
    kv_bytes: int = 32 << 20,
    identity: str = "these weights",
    **arguments: Any,
) -> Iterator[Engine]:
    """``arguments``: of the engine, other than by default."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET_ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from deployments.engines.counters import EngineCounters

        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=str(model),
                skip_tokenizer_init=True,
                dtype="float32",
                block_size=BLOCK,
                max_model_len=512,
                max_num_seqs=32,
                enable_prefix_caching=True,
                enforce_eager=True,
                kv_cache_memory_bytes=kv_bytes,
                kv_transfer_config=connector_config(address, settings, identity),
                **{"max_num_batched_tokens": 2048, "enable_chunked_prefill": False, **arguments},
            ),
            stat_loggers=[EngineCounters],
        )
    engine = Engine(llm)
    try:
        yield engine
    finally:
        with warnings.catch_warnings(action="ignore"):  # of sockets that vLLM leaves to the garbage collector
            llm.shutdown()
            del engine.llm, llm
            gc.collect()


@pytest.fixture(scope="module")
def engines(model: Path, keeper: CacheKeeper, runner: asyncio.Runner) -> Iterator[tuple[Engine, Engine]]:
    with ExitStack() as stack:

        async def start() -> tuple[Engine, Engine]:  # an engine wants a running loop where it is built
            address = keeper.server.address
            return stack.enter_context(engine_of(model, address)), stack.enter_context(engine_of(model, address))

        yield runner.run(start())


class TestEngines:
    def test_what_one_engine_read_another_need_not(
        self, engines: tuple[Engine, Engine], keeper: CacheKeeper, runner: asyncio.Runner
    ) -> None:
        first, second = engines
        lost, kept = prompt(1), prompt(2)
        expected = runner.run(first.ask(lost))
        assert expected.cached == 0
        until(lambda: objects(keeper.server) >= 8, again=lambda: runner.run(first.ask(lost)))
        empty(keeper.server)
        assert runner.run(second.ask(lost)) == Reply(expected.tokens, 0)

        empty(keeper.server)
        expected = runner.run(first.ask(kept))
        assert expected.cached == 0
        until(lambda: objects(keeper.server) >= 8, again=lambda: runner.run(first.ask(kept)))
        assert runner.run(second.ask(kept)) == Reply(expected.tokens, 8 * BLOCK)

    def test_what_is_written_to_a_prompt_too_short_to_be_looked_up_is_shared(
        self, engines: tuple[Engine, Engine], keeper: CacheKeeper, runner: asyncio.Runner
    ) -> None:
        first, second = engines
        empty(keeper.server)
        before, short = lookups(keeper.server), prompt(5, blocks=0)
        written = runner.run(first.ask(short, max_tokens=2 * BLOCK))
        until(lambda: objects(keeper.server) == 2, again=lambda: runner.run(first.ask(short, max_tokens=2 * BLOCK)))
        assert lookups(keeper.server) == before
        assert runner.run(second.ask([*short, *written.tokens])).cached == 2 * BLOCK
        until(lambda: lookups(keeper.server) == before + 1)

    def test_what_one_salt_has_left_is_of_no_use_to_another(
        self, engines: tuple[Engine, Engine], keeper: CacheKeeper, runner: asyncio.Runner
    ) -> None:
        first, second = engines
        empty(keeper.server)
        runner.run(first.ask(prompt(4), salt="mine"))
        until(lambda: objects(keeper.server) >= 8, again=lambda: runner.run(first.ask(prompt(4), salt="mine")))
        found = {salt: runner.run(second.ask(prompt(4), salt=salt)).cached for salt in (None, "yours", "mine")}
        assert found == {None: 0, "yours": 0, "mine": 8 * BLOCK}

    def test_requests_given_up_while_their_prefix_loads_harm_nobody(
        self, engines: tuple[Engine, Engine], keeper: CacheKeeper, runner: asyncio.Runner
    ) -> None:
        """vLLM hears of such a request once, or its engine dies; and nothing that it looked up stays locked."""
        first, second = engines
        die = random.Random(8)
        loaded, before = 0, objects(keeper.server)

        async def give_up(token_ids: list[int]) -> None:
            asks = [asyncio.create_task(second.ask(token_ids)) for _ in range(8)]
            await asyncio.sleep(die.uniform(0.0, 0.02))
            for ask in asks:
                ask.cancel()
            await asyncio.wait(asks)

        for _ in range(25):
            token_ids = [die.randrange(1, VOCABULARY - 1) for _ in range(8 * BLOCK + 1)]
            expected = runner.run(first.ask(token_ids))
            # Not waited for longer: while a busy server counts as unhealthy, nothing is stored.
            runner.run(asyncio.sleep(0.3))
            runner.run(give_up(token_ids))
            reply = runner.run(second.ask(token_ids))
            assert reply.tokens == expected.tokens
            loaded += reply.cached > 0
        assert loaded > 5, "hardly any prefix was there to be loaded"
        # All but what a server that counted as unhealthy was not told: of LMCache's own, every second object or more.
        until(lambda: l1(keeper.server)["read_locked_count"] <= (objects(keeper.server) - before) // 4)

    def test_generated_tokens_are_shared_as_well(
        self, engines: tuple[Engine, Engine], keeper: CacheKeeper, runner: asyncio.Runner
    ) -> None:
        first, second = engines
        before = objects(keeper.server)

        def written() -> Reply:
            return runner.run(first.ask(prompt(3, blocks=1), max_tokens=3 * BLOCK))

        reply = written()
        until(lambda: objects(keeper.server) >= before + 4, again=written)
        continued = prompt(3, blocks=1) + reply.tokens
        assert runner.run(second.ask(continued)).cached == 4 * BLOCK

    def test_a_kill_in_mid_flight_fails_no_request_and_hits_resume(
        self, engines: tuple[Engine, Engine], keeper: CacheKeeper, runner: asyncio.Runner
    ) -> None:
        first, second = engines
        restarts = keeper.restarts

        async def kill_amid_requests() -> list[Reply]:
            began = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(engine.ask(prompt(100 + seed), max_tokens=64, began=began))
                    for seed in range(16)
                    for engine in engines
                ]
                await began.wait()
                assert keeper.server.pid is not None
                os.kill(keeper.server.pid, signal.SIGKILL)
            return [task.result() for task in tasks]

        replies = runner.run(kill_amid_requests())
        assert [len(reply.tokens) for reply in replies] == [64] * 32
        # Both engines were asked the same, and KV from a dying server must not change an answer; a rounding may.
        same = [a.tokens == b.tokens for a, b in zip(replies[::2], replies[1::2], strict=True)]
        assert sum(same) >= 14

        until(lambda: keeper.restarts > restarts)
        seeds = iter(range(200, 100_000))

        def hit() -> bool:
            seed = next(seeds)
            runner.run(first.ask(prompt(seed)))
            runner.run(asyncio.sleep(0.1))
            return runner.run(second.ask(prompt(seed))).cached == 8 * BLOCK

        until(hit)

    def test_a_killed_engine_leaves_nothing_in_shared_memory(
        self, engines: tuple[Engine, Engine], keeper: CacheKeeper
    ) -> None:
        assert keeper.server.pid is not None
        mapped = segments.mapped_by(keeper.server.pid)
        assert len({segments.creator(name) for name in mapped}) == len(engines)
        victim = segments.creator(min(mapped))
        assert victim is not None
        left = {name for name in mapped if segments.creator(name) == victim}
        pidfd = os.pidfd_open(victim)
        os.kill(victim, signal.SIGKILL)
        assert select.select([pidfd], [], [], WAIT_S)[0]
        os.close(pidfd)
        until(lambda: not left & segments.segments())
        assert mapped - left <= segments.segments()
        assert not list(segments.SHM.glob(f"sem.*-{victim}-*"))


class Tier(NamedTuple):
    """A second tier: LMCache's settings of it, and how many objects it has."""

    adapter: dict[str, Any]
    stored: Callable[[], int]


@contextmanager
def on_disk(directory: Path) -> Iterator[Tier]:
    yield Tier({"type": "fs", "base_path": str(directory)}, lambda: len(list(directory.rglob("*.data"))))


@contextmanager
def in_redis(directory: Path) -> Iterator[Tier]:
    """A real server, as Debian ships it."""
    packages = ["redis-server", "redis-tools", "libjemalloc2", "liblua5.1-0", "liblzf1", "libatomic1", "lua-cjson"]
    found, environment = program("redis-server", [*packages, "lua-bitop"], directory)
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    with subprocess.Popen([found, *options], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            client = redis.Redis(port=port)
            until(lambda: _answers(client))
            yield Tier({"type": "resp", "host": "127.0.0.1", "port": port}, lambda: int(str(client.dbsize())))
        finally:
            process.terminate()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.parametrize("second_tier", [on_disk, in_redis])
def test_the_second_tier_keeps_salts_and_weights_apart_over_a_restart(
    model: Path,
    runner: asyncio.Runner,
    tmp_path: Path,
    second_tier: Callable[[Path], AbstractContextManager[Tier]],
) -> None:
    with ExitStack() as stack:
        tier = stack.enter_context(second_tier(tmp_path))
        settings = SETTINGS.model_copy(update={"l2_adapters": (tier.adapter,)})
        server = stack.enter_context(CacheServer(settings))
        figures = ServerFigures()

        async def start(identity: str) -> Engine:
            return stack.enter_context(engine_of(model, server.address, identity=identity))

        engine = runner.run(start("these weights"))
        runner.run(engine.ask(prompt(1), salt="mine"))
        until(
            lambda: tier.stored() >= 8,
            again=lambda: runner.run(engine.ask(prompt(1), salt="mine")),
        )
        server.restart()

        def cached(salt: str, engine: Engine = engine) -> int:
            runner.run(engine.llm.reset_prefix_cache())
            return runner.run(engine.ask(prompt(1), salt=salt)).cached

        until(lambda: cached("mine") == 8 * BLOCK)
        assert cached("yours") == 0
        assert cached("mine") == 8 * BLOCK

        def counted() -> bool:
            told = figures.read(server.address)
            return min(told.get(f"lmcache_second_tier_{event}_chunks", 0) for event in ("written", "read")) >= 8

        def from_the_second_tier() -> None:
            server.clear()  # of the first one alone
            cached("mine")

        until(counted, again=from_the_second_tier)
        # As after an update that has other weights under the same path.
        other = runner.run(start("other weights"))
        assert cached("mine", other) == 0
        until(lambda: cached("mine", other) == 8 * BLOCK)
        assert cached("mine") == 8 * BLOCK


def test_an_engine_that_is_alone_stores_what_it_is_about_to_lose(
    model: Path, keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    assert keeper.server.address is not None
    settings = SETTINGS.model_copy(update={"store": "evicted"})
    blocks = 32  # three such prompts with what is written to them
    path, *others = (prompt(seed) for seed in range(901, 907))
    strangers = registered(keeper.server)  # some of which are gone
    with engine_of(model, keeper.server.address, settings, kv_bytes=blocks * 65_536) as engine:
        # It has stored nothing yet, and notices all the same.
        restarts, new = keeper.restarts, registered(keeper.server) - strangers
        assert len(new) == 1
        assert keeper.server.pid is not None
        os.kill(keeper.server.pid, signal.SIGKILL)
        until(lambda: keeper.restarts > restarts and new <= registered(keeper.server))
        before = objects(keeper.server)
        written = runner.run(engine.ask(path))
        again = runner.run(engine.ask([*path, *written.tokens]))
        assert again.cached == len(path) - 1
        assert objects(keeper.server) == before, "nothing is about to be lost"

        for other in others:
            runner.run(engine.ask(other))
        until(lambda: objects(keeper.server) >= before + 8)
        came_back = runner.run(engine.ask(path))

        for other in others:
            runner.run(engine.ask(other))
        before = engine.external_hits

        async def siblings() -> list[Reply]:
            return await asyncio.gather(*(engine.ask(path) for _ in range(8)))

        found = runner.run(siblings())
        loaded = engine.external_hits - before

    assert came_back == written._replace(cached=len(path) - 1)
    assert found == 8 * [came_back]
    assert 0 < loaded < len(path), "one of them had it loaded, the others found it in the engine"


def test_prompts_are_shared_as_soon_as_they_are_computed_and_steps_when_they_are_lost(
    model: Path, keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    address = keeper.server.address
    assert address is not None
    settings = SETTINGS.model_copy(update={"store": "prefilled", "least_tokens": 4 * BLOCK})
    # Three such prompts have room, and the prompts of one engine are computed in several steps.
    parts = {"max_num_batched_tokens": 3 * BLOCK, "enable_chunked_prefill": True}
    with (
        engine_of(model, address, settings, kv_bytes=32 * 65_536, **parts) as first,
        engine_of(model, address, settings) as second,
    ):
        empty(keeper.server)
        path, short, *others = prompt(951), prompt(952, blocks=3), *(prompt(seed) for seed in range(953, 958))
        written = runner.run(first.ask(path, max_tokens=2 * BLOCK))
        until(lambda: objects(keeper.server) >= 8)
        runner.run(first.ask([*path, *written.tokens], max_tokens=1))
        runner.run(first.ask(short, max_tokens=1))
        assert l1(keeper.server)["total_object_count"] == 8, "neither what was written nor a short prompt"
        assert runner.run(second.ask(path, max_tokens=2 * BLOCK)) == written._replace(cached=8 * BLOCK)
        assert runner.run(second.ask(short, max_tokens=1)).cached == 0

        for other in others:
            runner.run(first.ask(other, max_tokens=1))
        # The prompts of the others, and of the first path what was written to it, which is lost; so is the short
        # prompt, for which nobody would ask.
        kept = 8 + 5 * 8 + 2
        until(lambda: objects(keeper.server) >= kept)
        runner.run(second.llm.reset_prefix_cache())
        assert runner.run(second.ask([*path, *written.tokens], max_tokens=1)).cached == 10 * BLOCK
        for other in others:
            assert runner.run(second.ask(other, max_tokens=1)).cached == 8 * BLOCK
        assert runner.run(first.ask(short, max_tokens=1)).cached == 0
        assert objects(keeper.server) == kept


@pytest.mark.parametrize("store", ["always", "evicted"])
def test_a_server_that_stands_still_for_a_while_keeps_nothing_wrong(
    store: str, model: Path, keeper: CacheKeeper, runner: asyncio.Runner
) -> None:
    """It copies from the engine's blocks itself, also what it was asked for long ago: they are still the same then."""
    unnoticed_s = 2 * 2.0
    settings = SETTINGS.model_copy(
        update={"store": store, "least_tokens": 9 * BLOCK, "heartbeat_interval_s": unnoticed_s / 2}
    )
    die = random.Random(11)

    def some(blocks: int) -> list[int]:
        return [die.randrange(1, VOCABULARY - 1) for _ in range(blocks * BLOCK + 1)]

    async def others(engine: Engine) -> None:
        """More than have room; too short to be kept when they are lost."""
        for _ in range(2):
            await asyncio.gather(*(engine.ask(some(8), max_tokens=1) for _ in range(8)))

    async def path_while_it_stands_still(engine: Engine) -> list[int]:
        began, path = asyncio.Event(), some(4)
        writing = asyncio.create_task(engine.ask(path, max_tokens=8 * BLOCK, began=began))
        await (began.wait() if store == "always" else writing)
        pid = keeper.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            path += (await writing).tokens
            if store == "evicted":
                await others(engine)
            await asyncio.sleep(unnoticed_s + 1)
            await others(engine)  # they get what the engine takes for free
        finally:
            os.kill(pid, signal.SIGCONT)
        return path

    with engine_of(model, keeper.server.address, settings, kv_bytes=6 << 20) as engine:
        found = 0
        for _ in range(3):  # what comes while a busy server counts as lost is not stored
            path = runner.run(path_while_it_stands_still(engine))
            runner.run(asyncio.sleep(unnoticed_s + 1))
            until(lambda: runner.run(engine.llm.reset_prefix_cache()))
            computed = runner.run(engine.ask(path, salt="computed"))
            reply = runner.run(engine.ask(path))
            assert reply.tokens == computed.tokens
            found = max(found, reply.cached)
            if found == 12 * BLOCK:
                break
        assert found == 12 * BLOCK, "what was lost or written while it stood still was stored"
