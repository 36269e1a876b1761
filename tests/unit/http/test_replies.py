"""Replies as OpenAI clients read them, plain and streamed; and the official client itself."""

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from http_world import DEPTH, STEP_TOKENS, World, chat, generator_is_dead, served

from deployments.admission import protocol
from deployments.http import streaming
from deployments.http.searches import tree_reply
from search.answers import equivalence
from search.answers.equivalence import AnswerMatcher
from search.errors import ScorerError
from search.settings import parse_search
from search.tools import turns
from search.tree import SearchTree
from tests.unit.reward_cards import worthless_card

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
SCORED: dict[str, Any] = {"model": "m", "question": "6*7?", "steps": ["a"]}


async def post(world: World, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    async with world.client as client:
        reply = await client.post(path, json=chat(**fields))
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


async def events(world: World, **fields: Any) -> list[Any]:
    async with world.client as client:
        reply = await client.post(CHAT, json=chat(stream=True, **fields))
    assert reply.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
    return [json.loads(item) if item != "[DONE]" else item for item in data]


async def test_a_plain_reply(world: World) -> None:
    reply = await post(world)
    [choice] = reply["choices"]
    assert reply["object"] == "chat.completion"
    assert choice["message"]["content"].endswith(("\\boxed{41}", "\\boxed{42}"))
    assert choice["message"]["reasoning_content"] is None
    assert choice["finish_reason"] == "stop"
    search, usage = reply["search"], reply["usage"]
    assert (search["strategy"], search["n"], search["seed"], search["stop_reason"]) == ("beam_search", 4, 1, "finished")
    assert search["answer"] in ("41", "42")
    assert not search["degraded"]
    assert usage["completion_tokens"] == search["generated_tokens"] == search["nodes"] * STEP_TOKENS
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    answer_tokens = usage["completion_tokens"] - usage["completion_tokens_details"]["reasoning_tokens"]
    assert answer_tokens == DEPTH * STEP_TOKENS


async def test_a_reply_lists_the_answers_of_the_vote(world: World) -> None:
    search = (await post(world))["search"]
    [winner, *others] = search["answers"]
    assert (winner["answer"], winner["score"]) == (search["answer"], search["score"])
    assert {winner["answer"], *(each["answer"] for each in others)} <= {"41", "42"}
    assert winner["share"] == search["agreement"]
    assert (search["selection"], winner["vote"]) == ("weighted", max(each["vote"] for each in search["answers"]))
    assert sum(each["vote"] for each in search["answers"]) == pytest.approx(1.0)
    assert winner["share"] + sum(each["share"] for each in others) == pytest.approx(1.0)
    assert 0.0 < winner["weight"] <= winner["share"]
    assert winner["paths"] >= 1


async def test_cached_tokens_count_only_the_prompts_tokens(world: World) -> None:
    world.generator.cached = 10_000
    usage = (await post(world))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]


async def test_one_seed_gives_one_tree_and_a_drawn_seed_is_reported(world: World) -> None:
    first, again = await post(world, "/v1/search"), await post(world, "/v1/search")
    assert first["tree"] == again["tree"]
    drawn = await post(world, "/v1/search", seed=None)
    assert drawn["tree"] != first["tree"]
    assert (await post(world, "/v1/search", seed=drawn["search"]["seed"]))["tree"] == drawn["tree"]


async def test_branches_given_back_are_reported(world: World) -> None:
    whole = await post(world, "/v1/search")
    assert [whole["search"][name] for name in ("given_back_branches", "waiting_branches", "least_headroom")] == [
        0,
        0,
        1,
    ]
    assert whole["tree"]["given_back"] == []
    world.generator.max_children = 1
    fewer = await post(world, "/v1/search", search={"strategy": "beam_search", "n": 4, "m": 2, "max_depth": 1})
    assert fewer["tree"]["given_back"] == [[1], [2], [3]]
    assert [node["id"] for node in fewer["tree"]["nodes"]] == [[0]]
    search = fewer["search"]
    assert (search["given_back_branches"], search["waiting_branches"], search["least_headroom"]) == (3, 0, 0.25)


async def test_kv_usage_is_reported_on_request(world: World) -> None:
    plain = (await post(world))["search"]
    asked = (await post(world, search={"kv_usage": True}))["search"]
    assert asked.keys() - plain.keys() == {
        "kv_tokens_peak",
        "kv_tokens_sum",
        "kv_node_tokens_peak",
        "kv_node_tokens_sum",
    }
    assert 0 < asked["kv_tokens_peak"] <= asked["kv_node_tokens_peak"] <= asked["kv_node_tokens_sum"]


async def test_a_tree_has_log_probabilities_on_request(world: World) -> None:
    plain = (await post(world, "/v1/search"))["tree"]
    asked = (await post(world, "/v1/search", search={"logprobs": True}))["tree"]
    assert {node["logprob"] for node in plain["nodes"]} == {None}
    assert {node["logprob"] for node in asked["nodes"]} == {-0.25 * STEP_TOKENS}
    for node in asked["nodes"]:
        assert node["token_logprobs"] == [-0.25] * len(node["token_ids"])
        del node["token_logprobs"], node["token_ids"]
        node["logprob"] = None
    assert asked == plain


@pytest.mark.parametrize(
    ("fields", "strategy", "n"),
    [
        ({"model": "m:best-8"}, "best_of_n", 8),
        ({"model": "m:sc-3"}, "self_consistency", 3),
        ({"model": "m:greedy"}, "greedy", 1),
        ({"model": "m:beam-8"}, "beam_search", 8),
        ({"model": "m:beam-8", "search": {"n": 2}}, "beam_search", 2),
        ({"model": "m:beam-8", "search": {"strategy": "best_of_n", "n": 2}}, "best_of_n", 2),
        ({"search": {"strategy": "best_of_n"}, "temperature": 0.1}, "best_of_n", 16),
    ],
)
async def test_an_alias_selects_a_search_and_the_search_field_overrides_it(
    world: World, fields: dict[str, Any], strategy: str, n: int
) -> None:
    block = (await post(world, **fields))["search"]
    assert (block["strategy"], block["n"]) == (strategy, n)


async def test_content_may_come_in_parts(world: World) -> None:
    parts = [{"type": "text", "text": "6*"}, {"type": "text", "text": ""}, {"type": "text", "text": "7?"}]
    in_parts = await post(world, messages=[{"role": "user", "content": parts}])
    in_lines = await post(world, messages=[{"role": "user", "content": "6*\n7?"}])
    assert in_parts["usage"]["prompt_tokens"] == in_lines["usage"]["prompt_tokens"]


async def test_a_truncated_path_ends_by_length(world: World) -> None:
    reply = await post(world, search={"max_depth": 1})
    assert reply["choices"][0]["finish_reason"] == "length"


async def test_a_stream_has_the_role_every_scored_step_the_answer_and_the_end(world: World) -> None:
    plain = await post(world)
    received = await events(world, stream_options={"include_usage": True})
    first, *middle, usage, done = received
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == plain["usage"]
    told = [chunk for chunk in middle if "search_event" in chunk]
    steps = [chunk for chunk in told if chunk["search_event"]["type"] == "step_scored"]
    assert len(steps) == plain["search"]["scored_steps"] + plain["search"]["repeated_steps"]
    assert all(chunk["choices"][0]["delta"]["reasoning_content"].endswith("\n") for chunk in steps)
    event = steps[-1]["search_event"]
    assert event["type"] == "step_scored"
    assert event["terminal"]
    assert len(event["node"]) == DEPTH
    assert event["tokens"] == plain["usage"]["completion_tokens"]
    answer, finish = middle[-2:]
    assert answer["choices"][0]["delta"]["content"] == plain["choices"][0]["message"]["content"]
    assert finish["choices"][0]["finish_reason"] == "stop"
    own = ("search_id", "seconds", "sample_seconds", "prm_calls")
    same = {key: value for key, value in plain["search"].items() if key not in own}
    assert same.items() <= finish["search"].items()


async def test_usage_is_streamed_only_on_request(world: World) -> None:
    received = await events(world)
    assert all("usage" not in chunk for chunk in received[:-1])


async def test_a_stream_that_has_nothing_to_say_says_so_by_comments(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert streaming.PING_S == 5.0
    monkeypatch.setattr(streaming, "PING_S", 0.01)
    world.generator.gate.clear()
    lines = []
    async with (
        served(world) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
        client.stream("POST", CHAT, json=chat(stream=True)) as reply,
    ):
        async for line in reply.aiter_lines():
            lines.append(line)
            if line.startswith(":"):
                world.generator.gate.set()
    assert lines.count("data: [DONE]") == 1
    assert any(line.startswith(": ping") for line in lines)


async def test_an_error_in_mid_stream_is_the_last_event(world: World) -> None:
    world.generator.error = generator_is_dead()
    received = await events(world)
    assert received[-1]["error"]["code"] == "generator_unavailable"
    assert "[DONE]" not in received


async def test_a_dead_generator_is_503_and_a_silent_prm_degrades_or_fails(
    world: World, make_world: Callable[..., World]
) -> None:
    world.scorer.error = ScorerError("no reply")
    assert (await post(world))["search"]["degraded"]
    world.generator.error = generator_is_dead()
    strict = make_world(fallback="fail")
    strict.scorer.error = ScorerError("no reply")
    for broken in (world, strict):
        async with broken.client as client:
            reply = await client.post(CHAT, json=chat())
        assert reply.status_code == 503
        assert reply.json()["error"]["type"] == "server_error"


async def test_past_capacity_is_429_with_retry_after_streamed_or_not(make_world: Callable[..., World]) -> None:
    world = make_world(searches=1)
    world.generator.gate.clear()
    async with world.client as client:
        first = asyncio.create_task(client.post(CHAT, json=chat()))
        while not world.generator.running:
            await asyncio.sleep(0)
        for stream in (False, True):
            reply = await client.post(CHAT, json=chat(stream=stream))
            assert reply.status_code == 429
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.json()["error"]["type"] == "rate_limit_error"
        world.generator.gate.set()
        assert (await first).status_code == 200
        assert (await client.post(CHAT, json=chat())).status_code == 200
    world.assert_idle()


async def test_a_search_out_of_its_own_time_without_an_answer_is_400(world: World) -> None:
    world.generator.gate.clear()
    async with world.client as client:
        reply = await client.post(CHAT, json=chat(search={"budget": {"seconds": 0.05}}))
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "budget_exhausted", "search.budget.seconds")
    world.assert_idle()


async def test_a_search_out_of_the_operators_time_without_an_answer_is_504(make_world: Callable[..., World]) -> None:
    for controller in (
        {"limits": {"seconds": 0.05}},
        {"default_search": {"strategy": "beam_search", "n": 4, "m": 2, "budget": {"seconds": 0.05}}},
    ):
        world = make_world(**controller)
        world.generator.gate.clear()
        async with world.client as client:
            reply = await client.post(CHAT, json=chat())
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
        world.assert_idle()


async def test_answers_that_were_not_read_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "_known_readings", lambda answer: None)
    asked = chat(search={"strategy": "best_of_n", "n": 16})
    async with world.client as client:
        notes = []
        for budget_s in (60.0, 0.0):
            monkeypatch.setattr(equivalence, "BUDGET_S", budget_s)
            notes.append((await client.post(CHAT, json=asked)).json()["search"]["notes"])
    assert notes == [[], ["answers that took too long to read and were compared as text: 1"]]


async def test_scores_of_given_steps(world: World) -> None:
    async with world.client as client:
        reply = await client.post("/v1/score", json=SCORED | {"steps": ["a\n\n", "b\n\n"]})
        wrong = await client.post("/v1/score", json=SCORED | {"steps": []})
    assert len(reply.json()["rewards"]) == 2
    assert reply.json()["model"] == "m"
    assert wrong.json()["error"]["param"] == "steps"


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ({"model": "m"}, 200, None),
        ({"model": "m:beam-16"}, 200, None),
        ({"model": "gpt-5"}, 404, "model_not_found"),
        ({"model": "m:magic-3"}, 404, "model_not_found"),
        ({"model": ""}, 404, "model_not_found"),
        ({"model": "fake-prm"}, 404, "model_not_found"),
        ({"model": 3}, 400, "invalid_value"),
        ({}, 200, None),
    ],
)
async def test_the_score_route_accepts_only_the_served_model(
    world: World, model: dict[str, Any], status: int, code: str | None
) -> None:
    asked = {"question": "6*7?", "steps": ["a"], **model}
    async with world.client as client:
        reply = await client.post("/v1/score", json=asked)
    assert reply.status_code == status
    if code is None:
        assert reply.json()["model"] == asked.get("model", "m")
    else:
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == ("model", code)


def trees_alive() -> int:
    """Number of trees that have nodes and were made since the test began."""
    return sum(type(each) is SearchTree and "_nodes" in vars(each) for each in gc.get_objects())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_search_leaves_no_tree_to_the_garbage_collector(world: World, stream: bool) -> None:
    gc.collect()
    gc.freeze()  # freezes existing objects, which `trees_alive` would otherwise scan each time
    gc.disable()
    try:
        world.generator.gate.clear()
        async with world.client as client:
            asked = [asyncio.create_task(client.post(CHAT, json=chat(stream=stream))) for _ in range(8)]
            while world.generator.running < len(asked):
                await asyncio.sleep(0)
            assert trees_alive() == len(asked)
            for each in asked:
                each.cancel()
            await asyncio.wait(asked)
            async with asyncio.timeout(10):
                while trees_alive():
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()
    world.assert_idle()


@pytest.mark.parametrize(("seconds", "status"), [(20.0, 503), (1e-6, 504)])
async def test_scores_that_fail_at_their_deadline_time_out(
    make_world: Callable[..., World], seconds: float, status: int
) -> None:
    """Whatever error the last replica returns then."""
    world = make_world(limits={"seconds": seconds})
    world.scorer.error = ScorerError("no reply")
    async with world.client as client:
        reply = await client.post("/v1/score", json=SCORED)
    assert reply.status_code == status


async def test_models_are_listed_base_first(world: World) -> None:
    async with world.client as client:
        listed = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
        assert listed[0] == "m"
        for name in listed:
            assert (await client.get(f"/v1/models/{name}")).json()["id"] == name
        assert (await client.get("/v1/models/other")).status_code == 404


async def test_health_checks_generator_and_prm(world: World) -> None:
    async with world.client as client:
        assert (await client.get("/health")).json()["components"].keys() == {"generator", "prm"}
        world.scorer.error = ScorerError("dead")
        failed = await client.get("/health")
        assert failed.status_code == 503
        assert failed.json()["components"]["prm"]["status"] == "failed"
        world.scorer.error = None
        world.generator.gate.clear()
        assert (await client.get("/health")).status_code == 503


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic secret", "secret", "Bearer s\xe9cret"])
async def test_with_keys_every_route_but_health_requires_one(
    make_world: Callable[..., World], header: str | None
) -> None:
    world = make_world(keys=["secret", "other"])
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    async with world.client as client:
        for path in (CHAT, "/v1/models", "/v1/nowhere", "/docs", "/openapi.json", "/v1/status"):
            reply = await client.get(path, headers=headers)  # type: ignore[arg-type]
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await client.get("/health")).status_code == 200
        good = {"authorization": "Bearer other"}
        assert (await client.post(CHAT, json=chat(), headers=good)).status_code == 200


async def test_the_openapi_schema_names_every_strategy(world: World) -> None:
    async with world.client as client:
        page = (await client.get("/openapi.json")).text
    assert "beam_search" in page
    assert "$defs" not in page


async def test_the_official_client_reads_plain_and_streamed_replies(world: World) -> None:
    async with served(world) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "6*7?"}], "seed": 3}
        plain = await client.chat.completions.create(**asked, extra_body={"search": {"n": 8}})
        assert plain.model_extra is not None
        assert plain.model_extra["search"]["n"] == 8
        assert plain.usage is not None
        assert plain.usage.completion_tokens_details is not None
        text, reasons = "", []
        stream = await client.chat.completions.create(
            **asked, extra_body={"search": {"n": 8}}, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
        assert text == plain.choices[0].message.content
        assert reasons[-1] == "stop"
        assert chunk.usage == plain.usage
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(**{**asked, "model": "other"})
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(**asked, extra_body={"search": {"n": 0}})
        assert raised.value.param == "search.n"
        assert (await client.models.list()).data[0].id == "m"


async def test_the_official_client_sends_developer_messages_stops_and_history(world: World) -> None:
    turns: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "6*7?"}]
    async with served(world) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        whole = await client.chat.completions.create(model="m", messages=turns, seed=3)
        cut = await client.chat.completions.create(model="m", messages=turns, seed=3, stop=["\\boxed", "never"])
        assert cut.choices[0].finish_reason == "stop"
        assert cut.choices[0].message.content == (whole.choices[0].message.content or "").partition("\\boxed")[0]
        question = {"role": "user", "content": "Sure?"}
        for told in (cut.choices[0].message, cut.choices[0].message.model_dump()):
            again = await client.chat.completions.create(model="m", messages=[*turns, told, question], seed=3)
            assert again.choices[0].message.content
        refusal: Any = {"role": "assistant", "content": None, "refusal": "I will not."}
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model="m", messages=[*turns, refusal, question])
        assert raised.value.param == "messages.2.refusal"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_ends_its_search(
    world: World, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "CHECK_S", 0.05)
    monkeypatch.setattr(streaming, "PING_S", 0.05)
    world.generator.gate.clear()
    async with served(world) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(chat(stream=stream)).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body)
        async with asyncio.timeout(60):
            while not world.generator.running:
                await asyncio.sleep(0.001)
            writer.close()
            while world.generator.running or world.service.running:
                await asyncio.sleep(0.001)
    world.assert_idle()


async def test_a_large_tree_written_in_pieces_is_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await post(world, "/v1/search")
    monkeypatch.setattr(tree_reply, "PIECE_BYTES", 64)
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    pieces = await post(world, "/v1/search")
    assert pieces["tree"] == whole["tree"]
    ids = [node["id"] for node in whole["tree"]["nodes"]]
    assert ids == sorted(ids)


async def test_a_search_with_a_reward_model_that_is_worth_nothing_says_so(matcher: AnswerMatcher) -> None:
    card = worthless_card()
    noted: dict[str, list[str]] = {}
    for name, prm in (("with", {"card": card.model_dump(mode="json")}), ("without", {})):
        async with World(matcher, prm=prm).client as client:
            for search in ({"strategy": "beam_search", "n": 4, "m": 2}, {"strategy": "self_consistency", "n": 4}):
                reply = await client.post(CHAT, json=chat(search=search))
                noted[f"{search['strategy']} {name}"] = reply.json()["search"]["notes"]
    note = card.note(parse_search({"strategy": "beam_search"}).strategy)
    assert noted.pop("beam_search with") == [note]
    assert set(map(len, noted.values())) == {0}
