"""Every bad request gets a clear 4xx in OpenAI's format, and reaches no engine."""

import json
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_world import World, chat
from pydantic import ValidationError

from deployments.admission.body_threads import INLINE_BYTES
from deployments.admission.errors import BadRequest
from deployments.http.chat.schema import ChatRequest
from deployments.http.json_body import MAX_DEPTH, MAX_ELEMENTS, MAX_FIELDS, parsed_object
from search.errors import GeneratorError, PathTooLarge, ScoredPathTooLarge, ScorerError, ScorerRefused

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"


def message(content: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (chat(messages=[]), 400, "messages"),
        (chat(messages="hi"), 400, "messages"),
        (chat(messages=[{"role": "user"}]), 400, "messages.0.content"),
        (chat(messages=[{"role": "robot", "content": "hi"}]), 400, "messages.0.role"),
        (chat(messages=[{"role": "assistant", "content": "hi"}]), 400, "messages.0.role"),
        (message(""), 400, "messages.0.content"),
        (message(None), 400, "messages.0.content"),
        (message([{"type": "image_url", "image_url": {"url": "x"}}]), 400, "messages.0.content.0.type"),
        (message("a\0b"), 400, "messages.0.content"),
        (message("a\ud800b"), 400, "messages.0.content"),
        (message([{"type": "text", "text": "a\0b"}]), 400, "messages.0.content.0.text"),
        (chat(user="a\ud800"), 400, "user"),
        (chat(search={"a\ud800": 1}), 400, "search"),
        (message("x" * 600), 400, "messages"),
        (chat(search={"strategy": "magic"}), 400, "search.strategy"),
        (chat(search={"width": 3}), 400, "search.width"),
        (chat(search=[]), 400, "search"),
        (chat(search={"n": 0}), 400, "search.n"),
        (chat(search={"n": 10**9}), 400, "search.n"),
        (chat(search={"n": "many"}), 400, "search.n"),
        (chat(search={"n": True}), 400, "search.n"),
        (chat(search={"n": 5}), 400, "search.n"),
        (chat(search={"n": 6, "m": 4}), 400, "search.m"),
        (chat(search={"max_depth": 101}), 400, "search.max_depth"),
        (chat(search={"budget": {"tokens": 0}}), 400, "search.budget.tokens"),
        (chat(search={"budget": {"seconds": 1e6}}), 400, "search.budget.seconds"),
        (chat(search={"temperature": float("nan")}), 400, "search.temperature"),
        (chat(temperature=float("nan")), 400, "temperature"),
        (chat(temperature=float("inf")), 400, "temperature"),
        (chat(temperature="hot"), 400, "temperature"),
        (chat(temperature=-1), 400, "temperature"),
        (chat(top_p=0), 400, "top_p"),
        (chat(seed=-1), 400, "seed"),
        (chat(seed=1.5), 400, "seed"),
        (chat(max_tokens=0), 400, "max_tokens"),
        (chat(max_completion_tokens=10**12), 400, "max_completion_tokens"),
        (chat(stream="yes"), 400, "stream"),
        (chat(stream=True, stream_options={"include_usage": "yes"}), 400, "stream_options.include_usage"),
        (chat(n=0), 400, "n"),
        (chat(n=129), 400, "n"),
        (chat(n=True), 400, "n"),
        (chat(stop=["x", "", 1]), 400, "stop.1"),
        (chat(search={"stop": [""]}), 400, "search.stop.0"),
        (chat(logprobs=1), 400, "logprobs"),
        (chat(logprobs=True, top_logprobs=2), 400, "top_logprobs"),
        (chat(tools=[{"type": "function"}]), 400, "tools.0.function"),
        (chat(response_format={"type": "json_object"}), 400, "response_format"),
        (chat(response_format={"type": "json"}), 400, "response_format.type"),
        (chat(frequency_penalty=0.5), 400, "frequency_penalty"),
        (chat(top_k=-2), 400, "top_k"),
        (chat(min_p=1.5), 400, "min_p"),
        (chat(search={"top_k": -1}), 400, "search.top_k"),
        (chat(reasoning_effort="extreme"), 400, "reasoning_effort"),
        (chat(reasoning_effort="minimal"), 400, "reasoning_effort"),
        (chat(chat_template_kwargs={"enable_thinking": []}), 400, "chat_template_kwargs.enable_thinking"),
        (chat(chat_template_kwargs=3), 400, "chat_template_kwargs"),
        (chat(model="gpt-5"), 404, "model"),
        (chat(model="m:magic-3"), 404, "model"),
        (chat(model="m:beam-0"), 400, "model"),
        (chat(model="m:greedy", temperature=0.5), 400, "temperature"),
        (chat(model=None), 400, "model"),
    ],
)
async def test_errors_name_the_wrong_field(world: World, body: dict[str, Any], status: int, param: str) -> None:
    async with world.client as client:
        headers = {"content-type": "application/json"}
        reply = await client.post(CHAT, content=json.dumps(body).encode(), headers=headers)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, param), error
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["code"]
    assert world.generator.calls == 0


@pytest.mark.parametrize(
    ("content", "media", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_json"),
        (b"[]", "application/json", 400, "invalid_json"),
        (b'"\xff"', "application/json", 400, "invalid_json"),
        (b"", "application/json", 400, "invalid_json"),
        (b"[" * 100_000, "application/json", 413, "body_too_large"),
        (b"[" * 60_000, "application/json", 400, "invalid_json"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "application/json", 400, "invalid_json"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"{}", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    ],
    ids=["cut off", "list", "not utf-8", "nothing", "too large", "deep", "long number", "text", "form"],
)
async def test_a_body_that_is_not_a_json_object_is_refused(
    world: World, content: bytes, media: str, status: int, code: str
) -> None:
    async with world.client as client:
        reply = await client.post(CHAT, content=content, headers={"content-type": media})
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [1] * 5000},
        {"messages": [{}] * 5000},
        {"messages": [{"role": "user", "content": [1] * 5000}]},
        {"stop": [1] * 5000},
    ],
    ids=["numbers", "empty objects", "parts", "stops"],
)
async def test_validation_stops_at_the_first_of_many_errors(fields: dict[str, Any]) -> None:
    """Describing half a million errors would block the event loop for ten seconds."""
    with pytest.raises(ValidationError) as raised:
        ChatRequest.model_validate(chat(**fields))
    assert raised.value.error_count() <= 2
    with pytest.raises(BadRequest):
        ChatRequest.parse(chat(**fields))


async def test_an_object_with_too_many_fields_is_refused_without_an_error_per_field(world: World) -> None:
    for body, param in (
        (chat(**{f"f{index}": 1 for index in range(2000)}), None),
        (chat(search={f"f{index}": 1 for index in range(2000)}), "search"),
    ):
        async with world.client as client:
            error = (await client.post(CHAT, json=body)).json()["error"]
        assert error["param"] == param
        assert f"{MAX_FIELDS} are allowed" in error["message"]


def nested(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


HOSTILE: dict[str, str | bytes] = {
    "a name of 50 kB in search": json.dumps(chat(search={"x" * 50_000: 1})),
    "a model of 50 kB": json.dumps(chat(model="m" * 50_000)),
    "a strategy of 50 kB": json.dumps(chat(search={"strategy": "x" * 50_000})),
    "a number of 400 digits": f'{{"model": "m", "seed": {"9" * 400}}}',
    "an infinite exponent": '{"model": "m", "temperature": 1e999}',
    "minus zero for n": json.dumps(chat()).replace('"seed": 1', '"search": {"n": -0}'),
    "a fraction for n": json.dumps(chat(search={"n": 4.5})),
    "a number for a text": json.dumps(message(7)),
    "nested 900 deep": json.dumps(chat(search={"budget": nested(900, 1)})),
    "nested 900 deep where nothing is read": json.dumps(chat(audio=nested(900, 1))),
    "a budget that is a list": json.dumps(chat(search={"budget": [1, 2]})),
    "names of paths": json.dumps(chat(search={"a.b.c": 1, "__class__": 1, "«tag»": 1})),
    "format strings": json.dumps(chat(search={"{0.__class__}%s%n": 1})),
    "the last of two models": json.dumps(chat())[:-1] + ', "model": "other"}',
    "UTF-16": json.dumps(chat(top_k="x")).encode("utf-16"),
    "a mark of the byte order": b"\xef\xbb\xbf" + json.dumps(chat(top_k="x")).encode(),
    "an unpaired surrogate in a name": '{"\\ud800": 1}',
    "a NUL in a name": '{"\\u0000": 1}',
    "an overlong NUL": b'{"model": "\xc0\x80"}',
    "a comment": "{/* */}",
    "NaN in a list that is not read": '{"metadata": [NaN]}',
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_hostile_bodies_get_a_short_clear_error(world: World, case: str) -> None:
    async with world.client as client:
        for path in (CHAT, "/v1/responses", "/v1/search", "/v1/completions", "/v1/score"):
            body = HOSTILE[case]
            reply = await client.post(path, content=body, headers={"content-type": "application/json"})
            assert reply.status_code in (400, 404), reply.text
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
            assert len(reply.content) < 4096
    assert world.generator.calls == 0


DEEP = b'{"a": ' + b"[" * 900 + b",".join([b"0"] * 20_000) + b"]" * 900 + b"}"


async def test_a_deep_and_wide_body_takes_neither_memory_nor_the_event_loop(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world(store={"path": str(tmp_path / "store")})
    async with world.client as client:
        for path in (CHAT, "/v1/responses", "/v1/search", "/v1/completions", "/v1/score", "/v1/batches"):
            tracemalloc.start()
            reply = await client.post(path, content=DEEP, headers={"content-type": "application/json"})
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
            assert f"{MAX_DEPTH} levels are allowed" in reply.json()["error"]["message"]
            assert peak < 4 << 20


@pytest.mark.parametrize("path", [CHAT, "/v1/batches"])
async def test_long_bodies_are_parsed_in_a_thread(
    make_world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads = set()
    loads = json.loads

    def noted(raw: Any, **hooks: Any) -> Any:
        threads.add(threading.current_thread() is threading.main_thread())
        return loads(raw, **hooks)

    world = make_world(store={"path": str(tmp_path / "store")})
    monkeypatch.setattr(json, "loads", noted)
    async with world.client as client:
        reply = await client.post(path, content=DEEP, headers={"content-type": "application/json"})
    assert (reply.status_code, threads) == (400, {False})


async def test_depth_and_elements_are_allowed_up_to_their_limits() -> None:
    def checked(value: Any) -> None:
        parsed_object(json.dumps({"a": value}).encode())

    checked(nested(MAX_DEPTH - 1, 1))
    checked([0] * (MAX_ELEMENTS - 1))
    with pytest.raises(BadRequest, match="nested too deeply"):
        checked(nested(MAX_DEPTH, 1))
    for wide in ([0] * MAX_ELEMENTS, [[], {}, [1] * (MAX_ELEMENTS - 3)]):
        with pytest.raises(BadRequest, match=f"limit of {MAX_ELEMENTS} values"):
            checked(wide)


async def test_the_path_of_a_fault_is_its_own() -> None:
    for value, param in (
        ({"a": [[1, "x"], {"b": [1, 2, float("nan")]}]}, "a.1.b.2"),
        ({"a": [[], {}, [["\0"]]], "b": "\0"}, "a.2.0.0"),
        ({"a": [[{}], 1.5, "x"], "b": {"c": {"\0": 1}}}, "b.c"),
    ):
        with pytest.raises(BadRequest) as raised:
            parsed_object(json.dumps(value).encode())
        assert raised.value.param == param


async def test_any_text_is_a_text(world: World) -> None:
    for text in (
        "\u202e\u2066 6*7?\u0007",
        "🏴󠁧󠁢󠁥󠁮󠁧󠁿" * 20,
        "e" + "\u0301" * 200,
        "\ufeff\ufffe\U0010ffff",
        "data: [DONE]\n\n",
        "a\u2028\x85\r\n",
    ):
        async with world.client as client:
            assert (await client.post(CHAT, json=message(text))).status_code == 200
            streamed = (await client.post(CHAT, json=message(text) | {"stream": True})).text
            assert streamed.count("data: [DONE]") == 1


async def test_long_bodies_are_parsed_in_a_thread_with_the_same_result(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    encode = world.encoder.encode_chat

    def noted(messages: Any, **told: Any) -> list[int]:
        threads.add(threading.current_thread() is threading.main_thread())
        return encode(messages, **told)

    monkeypatch.setattr(world.encoder, "encode_chat", noted)
    async with world.client as client:
        short = await client.post(CHAT, json=chat())
        long = await client.post(CHAT, json=chat(metadata={"padding": "x" * INLINE_BYTES}))
        wrong = await client.post(CHAT, json=chat(search={"n": 0}, metadata={"padding": "x" * INLINE_BYTES}))
    assert threads == {True, False}
    assert long.json()["choices"] == short.json()["choices"]
    assert wrong.json()["error"]["param"] == "search.n"


async def test_a_text_that_fits_no_context_is_not_tokenized(world: World) -> None:
    beams = {"model": "m", "prompt": "x" * 5000, "use_beam_search": True}
    turns = [{"role": "user", "content": "x" * 5000}, {"role": "assistant", "content": "y"}, *chat()["messages"]]
    many = [{"role": "user", "content": "x"}] * 700
    bodies = [(CHAT, message("x" * 5000)), (CHAT, chat(messages=turns)), (CHAT, chat(messages=many))]
    system = {"role": "system", "content": "x" * 5000}
    bodies += [(CHAT, chat(messages=[system, *chat()["messages"]])), ("/v1/completions", beams)]
    bodies += [("/v1/responses", {"model": "m", "instructions": "x" * 5000, "input": "6*7?"})]
    async with world.client as client:
        for path, body in bodies:
            reply = await client.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert world.encoder.tokenized == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_path_larger_than_all_kv_memory_is_a_400(make_world: Callable[..., World], stream: bool) -> None:
    world = make_world()
    world.generator.error = PathTooLarge(
        "a path needs 16 KV blocks, but there are only 15; generator.kv_cache_memory_bytes …"
    )
    async with world.client as client:
        reply = await client.post(CHAT, json=chat(stream=stream))
    assert "generator.kv_cache_memory_bytes" in reply.text
    assert "context_length_exceeded" in reply.text
    assert stream or reply.status_code == 400


async def test_a_scored_path_larger_than_all_kv_memory_is_a_400(make_world: Callable[..., World]) -> None:
    world = make_world(fallback="fail")
    world.scorer.error = ScoredPathTooLarge(
        "a path of 80 tokens needs 5 KV blocks, but there are only 4; prm.kv_cache…"
    )
    async with world.client as client:
        reply = await client.post("/v1/score", json={"model": "m", "question": "2+2?", "steps": ["It is 4."]})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "steps", "context_length_exceeded")
    assert "prm.kv_cache" in error["message"]


async def test_a_path_of_far_too_many_characters_is_not_tokenized(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    monkeypatch.delattr(type(world.encoder), "encode_text")
    async with world.client as client:
        reply = await client.post("/v1/score", json={"model": "m", "question": "2+2?", "steps": ["x" * 5000] * 10})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "steps", "context_length_exceeded")
    assert error["message"] == "the PRM's context is 1024 tokens; a path of 50004 characters has more"


async def test_prompts_behind_one_that_does_not_fit_are_not_tokenized(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    tokenized: list[str] = []
    plain = type(world.encoder).encode_text

    def counting(encoder: Any, text: str, **arguments: Any) -> list[int]:
        tokenized.append(text)
        return plain(encoder, text, **arguments)

    monkeypatch.setattr(type(world.encoder), "encode_text", counting)
    body = {"model": "m", "use_beam_search": True, "n": 2, "max_tokens": 16, "temperature": 0}
    async with world.client as client:
        reply = await client.post("/v1/completions", json=body | {"prompt": ["1", *["2" * 1020] * 50]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert len(tokenized) == 2
        reply = await client.post("/v1/completions", json=body | {"prompt": ["1"] * 50, "max_tokens": 100_000})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "above_limit")
        assert len(tokenized) == 2


async def test_a_path_that_the_reward_model_refuses_is_not_to_be_tried_again(make_world: Callable[..., World]) -> None:
    world = make_world(fallback="fail")
    world.scorer.error = ScorerRefused("a path cannot be encoded: the chat template refuses 'my diary'")
    async with world.client as client:
        reply = await client.post("/v1/score", json={"model": "m", "question": "2+2?", "steps": ["It is 4."]})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "steps", "invalid_value")
    assert "diary" not in reply.text


SECRET = "EngineDeadError at /opt/model.py:12, prompt 'my diary', 10.0.0.7:8000"


@pytest.mark.parametrize("error", [GeneratorError(SECRET), ScorerError(SECRET), RuntimeError(SECRET)], ids=type)
async def test_messages_of_internal_errors_are_logged_but_not_sent(
    make_world: Callable[..., World], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(fallback="fail")
    if isinstance(error, ScorerError):
        world.scorer.error = error
    else:
        world.generator.error = error
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(world.app, raise_app_exceptions=False), base_url="http://localhost"
    ) as client:
        for path, body in ((CHAT, chat()), (CHAT, chat(stream=True)), ("/v1/search", chat())):
            reply = await client.post(path, json=body)
            assert "error" in reply.text
            assert not any(word in reply.text for word in ("Engine", "/opt", "diary", "10.0"))
    assert SECRET in caplog.text, "who reads the log is"


async def test_a_prompt_that_fills_the_context_has_openais_code(world: World) -> None:
    async with world.client as client:
        reply = await client.post(CHAT, json=message("x" * 600))
    assert reply.json()["error"]["code"] == "context_length_exceeded"


async def test_a_huge_body_is_refused_without_being_read(world: World) -> None:
    sent = 0

    async def body() -> Any:
        nonlocal sent
        for _ in range(50):
            sent += 1 << 20
            yield b" " * (1 << 20)

    async with world.client as client:
        declared = await client.post(CHAT, content=b" " * (1 << 20), headers={"content-type": "application/json"})
        chunked = await client.post(CHAT, content=body(), headers={"content-type": "application/json"})
    assert declared.status_code == chunked.status_code == 413
    assert chunked.json()["error"]["code"] == "body_too_large"
    assert sent < 3 << 20


async def test_unknown_routes_and_methods_get_404_and_405(world: World) -> None:
    async with world.client as client:
        lost = await client.get("/v1/nowhere")
        wrong = await client.get(CHAT)
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "unknown_url")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


async def test_a_budget_too_small_for_any_answer_is_refused(world: World) -> None:
    async with world.client as client:
        reply = await client.post(
            CHAT, json=chat(search={"strategy": "best_of_n", "n": 1, "budget": {"seconds": 1e-9}})
        )
    assert reply.status_code in (400, 504)


async def test_caps_lower_default_settings_and_refuse_requested_ones(make_world: Callable[..., World]) -> None:
    world = make_world(limits={"n": 4, "depth": 2})
    async with world.client as client:
        assert (await client.post(CHAT, json=chat())).status_code == 200
        refused = await client.post(CHAT, json=chat(search={"n": 8}))
        deep = await client.post(CHAT, json=chat(search={"max_depth": 3}))
    assert refused.json()["error"]["code"] == deep.json()["error"]["code"] == "above_limit"


@pytest.mark.parametrize("strategy", ["dvts", "rebase"])
async def test_a_default_lowered_to_a_cap_stays_consistent_with_other_settings(
    make_world: Callable[..., World], strategy: str
) -> None:
    world = make_world(limits={"n": 10})
    async with world.client as client:
        reply = await client.post("/v1/chat/completions", json=chat(search={"strategy": strategy}))
    assert reply.status_code == 200, reply.text
    assert reply.json()["search"]["n"] == {"dvts": 8, "rebase": 10}[strategy]
