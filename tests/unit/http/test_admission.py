"""A request without a slot is refused before its body is read. Slow bodies, greedy keys and clients that hang up keep
nobody out."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from http_world import World, chat, generator_is_dead, served

from deployments.admission import body_threads, limits, quotas
from deployments.admission.clients import client_of
from deployments.admission.errors import Busy
from deployments.admission.keys import key_record, store_owner
from deployments.admission.proxy import WORK
from deployments.admission.quotas import MinuteUsage
from deployments.config import HttpSettings, KeyLimits, KeyRecord
from deployments.http import app as application
from search.rewards import ScoringCost
from search.tools.fair_threads import FairThreads

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
MakeWorld = Callable[..., World]
Json = dict[str, Any]


class Call:
    """One request sent straight into the application, which receives its body part by part."""

    def __init__(
        self,
        world: World,
        parts: Iterable[bytes] = (),
        *,
        path: str = CHAT,
        client: str = "c",
        key: str = "",
        declared: int | None = None,
    ):
        self.asked = 0
        """Messages that the application received."""
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self._parts = list(parts)
        self._body = b""
        self._more = asyncio.Event()
        self._gone = asyncio.Event()
        headers = [(b"content-type", b"application/json")]
        if key:
            headers.append((b"authorization", f"Bearer {key}".encode()))
        if declared is not None:
            headers.append((b"content-length", str(declared).encode()))
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "client": (client, 1),
            "root_path": "",
        }
        self.task = asyncio.create_task(self._run(world.app, scope))

    async def _run(self, app: Callable[..., Awaitable[None]], scope: Json) -> None:
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Json:
        self.asked += 1
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(part)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Json) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        self._body += message.get("body", b"")

    @property
    def error(self) -> Json:
        error: Json = json.loads(self._body)["error"]
        return error

    async def ended(self) -> "Call":
        async with asyncio.timeout(20):
            await self.task
        return self

    async def hang_up(self) -> None:
        self._gone.set()
        await self.ended()


def body_parts(**fields: Any) -> list[bytes]:
    return [json.dumps(chat(**fields)).encode(), b""]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def busy(world: World, count: int = 1, key: str = "") -> AsyncIterator[list[Call]]:
    """Keeps ``count`` requests at work within the block."""
    world.generator.gate.clear()
    calls = [Call(world, body_parts(seed=index), key=key) for index in range(count)]
    await until(lambda: world.generator.running == count)
    yield calls
    world.generator.gate.set()
    for call in calls:
        assert (await call.ended()).status == 200


@pytest.mark.parametrize("path", [*WORK, f"{CHAT}/", f"{CHAT}//"])
async def test_without_a_place_no_byte_is_read(make_world: MakeWorld, path: str) -> None:
    world = make_world(searches=1)
    async with busy(world):
        refused = await Call(world, [b"not even JSON", b""], path=path).ended()
        assert (refused.status, refused.asked) == (429, 0)
        assert refused.error["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", WORK)
async def test_a_route_without_admission_reads_no_byte(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(application, "WORK", ())
    refused = await Call(make_world(), [b"{}", b""], path=path).ended()
    assert (refused.status, refused.asked, refused.error["code"]) == (500, 0, "not_admitted")


async def test_below_a_route_prefix_the_rules_are_the_same(make_world: MakeWorld) -> None:
    """Serve leaves the prefix in the path, and also passes it as the root path."""
    world = make_world(keys=["k" * 20])
    transport = httpx.ASGITransport(world.app, root_path="/banyan")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/banyan/health")).status_code == 200
        assert (await client.post(f"/banyan{CHAT}", json=chat())).status_code == 401
        authorized = {"Authorization": f"Bearer {'k' * 20}"}
        assert (await client.post(f"/banyan{CHAT}", json=chat(), headers=authorized)).status_code == 200


async def test_routes_without_a_place_are_answered_when_all_places_are_taken(make_world: MakeWorld) -> None:
    world = make_world(searches=1)
    async with busy(world), world.client as client:
        for path in ("/v1/models", "/v1/status"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/health")).status_code == 503, "the canary hangs here, and that is told"
        assert (await client.get(CHAT)).status_code == 405
        assert (await client.post("/v1/nowhere", content=b"x")).status_code == 404


async def test_a_request_takes_no_place_before_its_body_is_complete(make_world: MakeWorld) -> None:
    world = make_world(searches=1)
    slow = Call(world, [b"{"], client="slow")
    await until(lambda: slow.asked == 2)
    assert world.service.running == 0
    assert (await Call(world, body_parts()).ended()).status == 200
    await slow.hang_up()
    assert slow.status is None


async def test_slow_bodies_leave_seats_for_other_clients_and_time_out(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRACE_S", 60.0)
    world = make_world(searches=2)  # eight seats for bodies
    slow = [Call(world, [b"{"], client="slow") for _ in range(20)]
    await until(lambda: sum(call.status == 429 for call in slow) == 16)
    assert {call.asked for call in slow if call.status == 429} == {0}
    also_slow = [Call(world, [b"{"], client="also slow") for _ in range(20)]
    await until(lambda: sum(call.status == 429 for call in also_slow) == 18)
    assert (await Call(world, body_parts(), client="quick").ended()).status == 200
    loop = asyncio.get_running_loop()
    elapsed = loop.time
    monkeypatch.setattr(loop, "time", lambda: elapsed() + limits.GRACE_S)
    for call in (*slow, *also_slow):
        await call.ended()
    ends = [call.status for call in (*slow, *also_slow)]
    assert (ends.count(408), ends.count(429)) == (6, 34)
    assert next(call for call in slow if call.status == 408).error["code"] == "request_timeout"
    assert (await Call(world, body_parts(), client="slow").ended()).status == 200


async def test_slow_bodies_of_many_clients_leave_a_slot_for_others(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRACE_S", 60.0)
    monkeypatch.setattr(limits, "PATIENCE_S", 1000.0)
    world = make_world(searches=2)  # so eight slots
    slow = [Call(world, [b"{"], client=f"slow {index // 4}") for index in range(16)]
    await until(lambda: sum(call.status == 429 for call in slow) == 8)
    assert [call.status for call in slow].count(None) == 8, "four, two, one and one"
    hasty = await Call(world, body_parts(), client="hasty").ended()
    assert hasty.status == 429, "within PATIENCE_S no body loses its slot"
    monkeypatch.setattr(limits, "PATIENCE_S", 0.0)
    for index in range(3):
        assert (await Call(world, body_parts(), client=f"quick {index}").ended()).status == 200
    await until(lambda: slow[0].status is not None)
    assert (slow[0].status, slow[0].error["code"]) == (408, "request_timeout")
    assert [call.status for call in slow].count(408) == 1, "one slot serves one client after another"
    refused = await Call(world, [b"{"], client="slow 1").ended()
    assert refused.status == 429, "a client with a slot takes none from another"
    for call in slow:
        await call.hang_up()


async def test_a_body_has_a_total_time_limit_and_a_minimum_rate(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GRACE_S", 0.2)
    monkeypatch.setattr(limits, "MIN_BYTES_PER_S", 1e9)

    class Dripping(Call):
        async def _receive(self) -> Json:
            await asyncio.sleep(0.02)  # never long enough to exceed a limit on one message
            return {"type": "http.request", "body": b" ", "more_body": True}

    assert (await Dripping(make_world()).ended()).status == 408
    monkeypatch.setattr(limits, "MIN_BYTES_PER_S", 1)
    monkeypatch.setattr(limits, "BODY_TIMEOUT_S", 0.3)
    assert (await Dripping(make_world()).ended()).status == 408, "fast enough, and still not for ever"


async def test_a_queued_request_gets_a_place_or_times_out(make_world: MakeWorld) -> None:
    world = make_world(searches=1, queue={"places": 2, "seconds": 20})
    async with busy(world):
        waiting = [Call(world, body_parts(seed=index)) for index in range(2)]
        await until(lambda: world.service.slots.waiting == 2)
        assert (await Call(world, body_parts()).ended()).status == 429
        await waiting[0].hang_up()
        assert (waiting[0].status, world.service.slots.waiting) == (None, 1)
    assert (await waiting[1].ended()).status == 200
    world.assert_idle()

    world = make_world(searches=1, queue={"places": 2, "seconds": 0.05})
    async with busy(world):
        refused = await Call(world, body_parts()).ended()
        assert refused.status == 429
        assert "none became free in time" in refused.error["message"]


async def test_a_client_that_hangs_up_frees_its_place(make_world: MakeWorld) -> None:
    world = make_world(searches=1)
    for stream in (False, True):
        world.generator.gate.clear()
        call = Call(world, body_parts(stream=stream))
        await until(lambda: world.generator.running == 1)
        await call.hang_up()
        await until(lambda: world.generator.running == 0)
        world.assert_idle()


async def test_a_late_event_loop_admits_no_request(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(max_loop_delay_s=0.5)
    world.loop_delay._samples.append(0.7)
    refused = await Call(world, body_parts()).ended()
    assert (refused.status, refused.asked) == (429, 0)
    assert "delayed by 0.7 s" in refused.error["message"]
    async with world.client as client:
        assert (await client.get("/health")).status_code == 200
    world.loop_delay._samples.clear()
    world.loop_delay._samples.append(0.4)
    assert (await Call(world, body_parts()).ended()).status == 200


async def test_every_request_frees_its_place_however_it_ends(world: World) -> None:
    for parts in ([b"{", b""], body_parts(search={"n": 0}), body_parts(model="no")):
        assert (await Call(world, parts).ended()).status in (400, 404)
        world.assert_idle()
    world.generator.error = generator_is_dead()
    assert (await Call(world, body_parts()).ended()).status == 503
    assert (await Call(world, body_parts(stream=True)).ended()).status == 200
    world.assert_idle()
    world.generator.error = RuntimeError("what nobody expects")
    with pytest.raises(RuntimeError):
        await Call(world, body_parts()).ended()
    world.assert_idle()


def limited(key: str, **of: Any) -> KeyRecord:
    return key_record(key).model_copy(update={"limits": KeyLimits(**of)})


MINE, YOURS = "my-key-of-many-characters", "your-key-of-many-characters"


async def test_a_key_is_limited_to_its_own_places(make_world: MakeWorld) -> None:
    world = make_world(records=[limited(MINE, places=2), key_record(YOURS)], searches=3)
    async with busy(world, 2, MINE):
        refused = await Call(world, body_parts(), key=MINE).ended()
        assert (refused.status, refused.asked) == (429, 0)
        assert "limits.places" in refused.error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        yours = Call(world, body_parts(), key=YOURS)
        await until(lambda: world.service.running == 3)
    assert (await yours.ended()).status == 200


async def test_a_key_that_has_used_its_tokens_waits_for_the_next_minute(make_world: MakeWorld) -> None:
    world = make_world(records=[limited(MINE, tokens_per_minute=10), key_record(YOURS)])
    async with world.client as client:

        async def ask(key: str, **fields: Any) -> httpx.Response:
            return await client.post(CHAT, json=chat(**fields), headers={"authorization": f"Bearer {key}"})

        assert (await ask(MINE, search={"n": 0})).status_code == 400, "costs nothing"
        assert (await ask(MINE)).json()["usage"]["total_tokens"] > 10
        refused = await ask(MINE)
        assert refused.status_code == 429
        assert "limits.tokens_per_minute" in refused.json()["error"]["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (await ask(YOURS)).status_code == 200


async def test_a_batch_and_other_requests_of_a_key_share_its_tokens(make_world: MakeWorld) -> None:
    record = key_record("k" * 20, KeyLimits(tokens_per_minute=1))
    world = make_world(records=[record])
    [body, _] = body_parts()
    assert (await Call(world, [body, b""], key="k" * 20).ended()).status == 200
    assert (await world._inside.answer("POST", CHAT, body, store_owner(record)))[0] == 429


async def test_a_minute_is_a_minute_when_the_clock_is_set_back(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(records=[limited(MINE, tokens_per_minute=5)])
    assert (await Call(world, body_parts(), key=MINE).ended()).status == 200
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    refused = await Call(world, body_parts(), key=MINE).ended()
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) <= 60
    elapsed = time.monotonic
    monkeypatch.setattr(quotas, "time", SimpleNamespace(monotonic=lambda: elapsed() + 61))
    assert (await Call(world, body_parts(), key=MINE).ended()).status == 200


async def test_scores_count_for_the_minute_by_their_texts(make_world: MakeWorld) -> None:
    world = make_world(records=[limited(MINE, tokens_per_minute=12)])
    async with world.client as client:

        async def ask() -> httpx.Response:
            body = {"question": "6*7?", "steps": ["six", "42"]}
            return await client.post("/v1/score", json=body, headers={"authorization": f"Bearer {MINE}"})

        usage = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
        assert [(await ask()).json().get("usage") for _ in range(2)] == [usage] * 2
        refused = await ask()
        assert refused.status_code == 429
        assert "limits.tokens_per_minute" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("cost", "prompt", "written"),
    [
        (ScoringCost(prompt_tokens=400, cached_tokens=300), 100, 0),  # every step read the whole path
        (ScoringCost(prompt_tokens=400, cached_tokens=395), 9, 0),
        (ScoringCost(prompt_tokens=40, cached_tokens=10, generated_tokens=70, critiques=2), 30, 70),
    ],
)
async def test_scores_count_for_the_minute_by_what_the_reward_model_computed(
    make_world: MakeWorld, cost: ScoringCost, prompt: int, written: int
) -> None:
    world = make_world(records=[limited(MINE, tokens_per_minute=prompt + written + 1)])
    world.scorer.cost = cost
    asked = {"question": "6*7?", "steps": ["six", "42"]}, {"authorization": f"Bearer {MINE}"}
    async with world.client as client:
        replies = [await client.post("/v1/score", json=asked[0], headers=asked[1]) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    assert replies[0].json()["usage"] == usage


async def test_tokens_that_are_computed_again_without_the_prefix_cache_count_for_the_minute(
    make_world: MakeWorld,
) -> None:
    beams = {"model": "m", "prompt": "abc", "use_beam_search": True, "n": 2, "max_tokens": 3}
    used = {}
    for skip in (False, True):
        world = make_world(records=[limited(MINE, tokens_per_minute=28)])
        asked = beams | {"skip_reading_prefix_cache": skip}
        async with world.client as client:
            replies = [
                await client.post("/v1/completions", json=asked, headers={"authorization": f"Bearer {MINE}"})
                for _ in range(2)
            ]
        used[skip] = [reply.json()["usage"]["total_tokens"] if reply.is_success else 429 for reply in replies]
    assert used == {False: [10, 10], True: [30, 429]}


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_an_abandoned_request_count_for_its_key(make_world: MakeWorld, stream: bool) -> None:
    world = make_world(records=[limited(MINE, tokens_per_minute=5)])
    world.generator.gate.clear()
    call = Call(world, body_parts(stream=stream), key=MINE)
    await until(lambda: world.generator.running == 1)
    await call.hang_up()
    assert (await Call(world, body_parts(), key=MINE).ended()).status == 429


@pytest.mark.parametrize("isolate", [True, False])
async def test_each_key_has_its_own_cache_salt(make_world: MakeWorld, isolate: bool) -> None:
    """Unless keys share their caches by configuration. A client cannot name a salt."""
    salts = {}
    for key in (MINE, YOURS, MINE):
        world = make_world(records=[key_record(MINE), key_record(YOURS)], isolate_keys=isolate)
        headers = {"authorization": f"Bearer {key}"}
        async with world.client as client:
            for path, body in (
                (CHAT, chat()),
                (CHAT, chat(stream=True)),
                ("/v1/search", chat()),
                ("/v1/completions", {"model": "m", "prompt": "a", "use_beam_search": True, "n": 2, "max_tokens": 3}),
                ("/v1/score", {"model": "m", "question": "6*7?", "steps": ["a"]}),
            ):
                assert (await client.post(path, json=body, headers=headers)).status_code == 200
            named = chat() | {"cache_salt": "another's"}
            reply = (await client.post(CHAT, json=named, headers=headers)).json()
            assert reply["search"]["notes"] == ["unknown fields have no effect here: cache_salt"]
        seen = world.generator.salts | world.scorer.salts | {beam.cache_salt for beam in world.generator.beams}
        assert salts.setdefault(key, seen) == seen
    assert salts == (
        {key: {key_record(key).cache_salt} for key in (MINE, YOURS)} if isolate else {MINE: {""}, YOURS: {""}}
    )


async def test_without_keys_all_clients_share_the_caches(make_world: MakeWorld) -> None:
    world = make_world()
    async with world.client as client:
        assert (await client.post(CHAT, json=chat())).status_code == 200
    assert world.generator.salts == world.scorer.salts == {""}


async def test_a_key_limits_the_nodes_of_one_request(make_world: MakeWorld) -> None:
    world = make_world(records=[limited(MINE, nodes=5), key_record(YOURS)])
    async with world.client as client:

        async def ask(key: str, **fields: Any) -> Any:
            return (await client.post(CHAT, json=chat(**fields), headers={"authorization": f"Bearer {key}"})).json()

        refused = (await ask(MINE, search={"budget": {"nodes": 6}}))["error"]
        assert (refused["code"], refused["param"]) == ("above_limit", "search.budget.nodes")
        assert (await ask(MINE))["search"]["nodes"] <= 5 < (await ask(YOURS))["search"]["nodes"]


async def test_critiques_of_a_search_count_for_the_minute(make_world: MakeWorld) -> None:
    world = make_world(records=[limited(MINE, tokens_per_minute=2000)])
    world.scorer.cost = ScoringCost(generated_tokens=2000, critiques=2)
    async with world.client as client:
        headers = {"authorization": f"Bearer {MINE}"}
        replies = [await client.post(CHAT, json=chat(), headers=headers) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 429]
    assert replies[0].json()["usage"]["total_tokens"] < 2000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_that_might_not_fit_into_total_tokens_is_refused(make_world: MakeWorld, stream: bool) -> None:
    """Before a stream begins, and before the generator is asked; what the error names as fitting fits."""
    world = make_world()
    search: dict[str, Any] = {"strategy": "best_of_n", "n": 4, "budget": {"total_tokens": 100}}
    asked = chat(stream=stream, max_tokens=30, search=search)
    async with world.client as client:
        reply = await client.post(CHAT, json=asked)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (
            400,
            "budget_too_small",
            "search.budget.total_tokens",
        )
        assert "4 branches of at most 30. What would fit: total_tokens of " in error["message"]
        assert not world.generator.salts
        fitting = re.findall(r"total_tokens of (\d+), or (\d)", error["message"])
        [(total, branches)] = fitting
        search["budget"]["total_tokens"] = int(total)
        assert (await client.post(CHAT, json=asked)).status_code == 200
        search |= {"budget": {"total_tokens": 100}, "n": int(branches)}
        assert (await client.post(CHAT, json=asked)).status_code == 200


async def test_a_key_limits_the_tokens_of_one_request(make_world: MakeWorld) -> None:
    world = make_world(records=[limited(MINE, tokens=50), key_record(YOURS)])
    async with world.client as client:

        async def ask(key: str, path: str = CHAT, **fields: Any) -> httpx.Response:
            return await client.post(path, json=fields, headers={"authorization": f"Bearer {key}"})

        asked = chat(search={"budget": {"tokens": 60}})
        refused = (await ask(MINE, **asked)).json()["error"]
        assert (refused["code"], refused["param"]) == ("above_limit", "search.budget.tokens")
        assert (await ask(YOURS, **asked)).status_code == 200
        assert (await ask(MINE, **chat())).json()["usage"]["completion_tokens"] <= 50
        beams = {"model": "m", "prompt": "a", "use_beam_search": True, "n": 2, "max_tokens": 30}
        assert (await ask(MINE, "/v1/completions", **beams)).status_code == 400
        assert (await ask(YOURS, "/v1/completions", **beams)).status_code == 200


async def test_bytes_are_charged_before_they_are_read(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of requests that are refused."""
    monkeypatch.setattr(limits, "BODIES_PER_MINUTE", 1)
    world = make_world(records=[key_record(MINE), key_record(YOURS)], limits={"body_bytes": 10_000})
    wrong = b"x" * 4000
    for _ in range(2):
        assert (await Call(world, [wrong, b""], key=MINE, declared=4000).ended()).status == 400
    refused = await Call(world, [wrong, b""], key=MINE, declared=4000).ended()
    assert (refused.status, refused.asked) == (429, 0)
    assert "10000 body bytes per minute" in refused.error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    chunked = await Call(world, [b"x" * 1500, b"x" * 1500, b""], key=MINE).ended()
    assert (chunked.status, chunked.asked) == (429, 2), "no more is read than may be"
    assert (await Call(world, body_parts(), key=MINE).ended()).status == 200, "a short one still fits"
    assert (await Call(world, [wrong, b""], key=YOURS, declared=4000).ended()).status == 400
    world.assert_idle()


async def test_an_abandoned_body_is_charged_as_declared(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODIES_PER_MINUTE", 1)
    world = make_world(limits={"body_bytes": 10_000})
    left = Call(world, [b"{"], declared=9000)
    await until(lambda: left.asked == 2)
    await left.hang_up()
    assert (await Call(world, [], declared=9000).ended()).status == 429


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
async def test_a_client_with_many_long_bodies_passes_no_other_client(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(body_threads, "_THREADS", threads := FairThreads(1, 1 << 20, "test"))
    world, gate, order = make_world(), asyncio.Event(), list[str]()
    loop, encode = asyncio.get_running_loop(), world.encoder.encode_chat

    def noted(messages: Any, **told: Any) -> list[int]:
        order.append(messages[-1]["content"])
        return encode(messages, **told)

    monkeypatch.setattr(world.encoder, "encode_chat", noted)

    def long(text: str) -> list[bytes]:
        said = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"input": text}
        padding = {f"x{index}": "x" * 500 for index in range(10)}
        return [json.dumps({"model": "m", **said, "metadata": padding}).encode(), b""]

    first = threads.submit("blocks", lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20))
    many = [Call(world, long(f"many {index}"), path=path, client="many") for index in range(12)]
    await until(lambda: len(threads._waiting.get("address many", ())) == 12)
    few = Call(world, long("few"), path=path, client="few")
    await until(lambda: "address few" in threads._waiting)
    gate.set()
    for call in (*many, few):
        assert (await call.ended()).status == 200
    assert first.done()
    assert sorted(order) == sorted([*(f"many {index}" for index in range(12)), "few"])
    assert order.index("few") <= 2, "one turn of the other, or two where a request takes two"


async def test_too_many_waiting_bytes_are_refused(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_threads, "_THREADS", threads := FairThreads(1, 20_000, "test"))
    world, gate, loop = make_world(), asyncio.Event(), asyncio.get_running_loop()
    threads.submit("blocks", lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20), size=0)
    parts = body_parts(metadata={"padding": "x" * 9000})
    waiting = Call(world, list(parts), client="many")
    await until(lambda: "address many" in threads._waiting)
    refused = await Call(world, list(parts), client="many").ended()
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    other = Call(world, list(parts), client="other")
    await until(lambda: "address other" in threads._waiting)
    gate.set()
    assert [(await call.ended()).status for call in (waiting, other)] == [200, 200]
    world.assert_idle()


async def test_a_body_that_waits_too_long_for_a_thread_is_refused(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_threads, "_THREADS", threads := FairThreads(1, 1 << 20, "test"))
    monkeypatch.setattr(body_threads, "WAIT_S", 0.01)
    world, gate, loop = make_world(), asyncio.Event(), asyncio.get_running_loop()
    threads.submit("blocks", lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20))
    parts = body_parts(metadata={"padding": "x" * 6000})
    assert (await Call(world, list(parts)).ended()).status == 429
    assert not threads._waiting, "it will not be done"
    gate.set()
    world.assert_idle()


async def test_a_crowd_of_addresses_takes_no_memory_and_no_more_than_one_share() -> None:
    usage = MinuteUsage()
    for index in range(3 * quotas.MAX_CLIENTS):
        usage.charge(f"2001:db8:{index:x}::/64", 1)
    assert len(usage) == quotas.MAX_CLIENTS + 1
    with pytest.raises(Busy):
        usage.check("a newcomer", 2 * quotas.MAX_CLIENTS, "no more", "test")
    usage.check("2001:db8:0::/64", 2, "no more", "test")


async def test_minutes_that_are_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = MinuteUsage()
    for client in ("a", "b"):
        usage.charge(client, 5)
    elapsed = time.monotonic
    monkeypatch.setattr(quotas, "time", SimpleNamespace(monotonic=lambda: elapsed() + 61))
    usage.check("c", 1, "no more", "test")
    assert len(usage) == 0


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2:0::9", "2001:db8:1:2::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fe80::1%eth0", "fe80::/64"),
        ("localhost", "localhost"),
        ("x" * 60_000, "x" * 64),
    ],
)
async def test_a_client_without_a_key_is_its_network(address: str, client: str) -> None:
    assert client_of({"client": (address, 1)}) == f"address {client}"


async def test_a_client_with_a_key_is_its_key() -> None:
    record = key_record(MINE)
    assert client_of({"client": ("10.1.2.3", 1), "state": {"key": record}}) == record.digest
    assert client_of({"client": None}) == client_of({}) == "address "


FORGED = [f"10.0.{index}.1" for index in range(6)]


async def test_made_up_addresses_are_one_client(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a connection from this machine, of which uvicorn would believe them."""
    monkeypatch.setattr(limits, "BODIES_PER_MINUTE", 1)
    world = make_world(limits={"body_bytes": 10_000})
    async with served(world) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def sent(**headers: str) -> int:
            return (await client.post(CHAT, content=b"x" * 4000, headers=JSON | headers)).status_code

        assert [await sent(**{"X-Forwarded-For": address}) for address in FORGED] == [400, 400, 429, 429, 429, 429]
        for name in ("Forwarded", "X-Real-IP", "X-Client-IP", "True-Client-IP"):
            assert await sent(**{name: "for=10.9.9.9"}) == 429


async def test_the_address_that_a_named_proxy_adds_is_the_client(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODIES_PER_MINUTE", 1)
    world = make_world(limits={"body_bytes": 10_000}, http={"trusted_proxies": ["127.0.0.0/8", "10.1.0.0/16"]})
    async with served(world) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def sent(*addresses: str) -> int:
            headers = JSON | {"X-Forwarded-For": ", ".join(addresses)}
            return (await client.post(CHAT, content=b"x" * 4000, headers=headers)).status_code

        forged = [await sent(address, "192.0.2.1", "10.1.2.3") for address in FORGED]
        assert forged == [400, 400, 429, 429, 429, 429], "only what the first named proxy has seen counts"
        assert await sent("192.0.2.2") == 400
        networks = [await sent(f"2001:db8::{index}") for index in range(1, 5)]
        assert networks == [400, 400, 429, 429]


async def test_what_comes_through_a_proxy_is_not_from_this_machine(make_world: MakeWorld) -> None:
    async with served(make_world()) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get("/v1/status")).status_code == 200
        for name in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
            assert (await client.get("/v1/status", headers={name: "127.0.0.1"})).status_code == 403


@pytest.mark.parametrize("network", ["*", "10.0.0.1/8", "proxy.example", "", "jobs", "10.0.0.0/33"])
async def test_a_trusted_proxy_is_named_by_its_address(network: str) -> None:
    with pytest.raises(ValueError, match=r"trusted_proxies"):
        HttpSettings(trusted_proxies=(network,))
