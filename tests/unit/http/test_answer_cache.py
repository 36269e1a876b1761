"""A question that was answered is answered again from the answer cache, in the form that is asked for."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from http_world import STEP_TOKENS, World, chat

from deployments.admission.keys import key_record, store_owner
from deployments.config import KeyLimits
from deployments.service.answer_cache import AnswerCache
from search.answers.equivalence import AnswerMatcher
from search.errors import ScorerError

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
KEY, OTHER = "a-key-of-twenty-characters", "another-key-of-many-more"
BY_LETTERS = {"embedding": "http_world:letter_counts", "threshold": 0.9, "embedding_timeout_s": 30}


def turns(*texts: str) -> list[Json]:
    """A conversation: the user's first turn, the assistant's, and so on."""
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]


@pytest_asyncio.fixture
async def caching(matcher: AnswerMatcher, tmp_path: Path) -> AsyncIterator[World]:
    world = World(matcher, keys=[KEY, OTHER], answer_cache=BY_LETTERS, store={"path": str(tmp_path)})
    yield world
    world.assert_idle()
    assert world.answers is not None
    assert world.answers.check_integrity() == []
    world.answers.close()


async def sent(world: World, path: str = CHAT, key: str = KEY, control: str = "", **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} | ({"Cache-Control": control} if control else {})
    async with world.client as client:
        reply = await client.post(path, json=fields, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply


async def ask(world: World, path: str = CHAT, key: str = KEY, control: str = "", **fields: Any) -> Json:
    reply: Json = (await sent(world, path, key, control, **chat(**fields))).json()
    return reply


def was_cached(reply: Json) -> bool:
    cached = reply["search"]["cached"]
    assert isinstance(cached, bool)
    return cached


async def test_the_same_question_costs_nothing_and_has_the_same_answer(caching: World) -> None:
    first = await ask(caching)
    calls = caching.generator.calls
    again = await ask(caching)
    assert caching.generator.calls == calls
    assert (was_cached(first), was_cached(again)) == (False, True)
    assert again["choices"] == first["choices"]
    assert again["id"] != first["id"]
    assert again["id"].endswith(again["search"]["search_id"])
    usage = again["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (0, 0, 0)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
    changed = {"search_id", "cached"}
    assert {name: value for name, value in again["search"].items() if name not in changed} == {
        name: value for name, value in first["search"].items() if name not in changed
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 2},
        {"seed": None},
        {"messages": turns("6*8?")},
        {"messages": turns("6*7? ")},
        {"messages": [{"role": "system", "content": "Be brief."}, *turns("6*7?")]},
        {"messages": turns("1*1?", "1", "6*7?")},
        {"messages": turns("6*7?", "It is"), "continue_final_message": True},
        {"temperature": 0.3},
        {"top_p": 0.5},
        {"max_tokens": 100},
        {"max_completion_tokens": 1000},
        {"stop": "Q"},
        {"logprobs": True},
        {"search": {"n": 6}},
        {"search": {"budget": {"seconds": 9}}},
        {"search": {"strategy": "best_of_n", "n": 4}},
        {"search": {"kv_usage": True}},
        {"reasoning_effort": "high"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"model": "m:sc-4", "response_format": {"type": "json_object"}},
    ],
)
async def test_what_changes_the_answer_is_another_question(caching: World, fields: Json) -> None:
    await ask(caching)
    assert not was_cached(await ask(caching, **fields))
    assert was_cached(await ask(caching, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"service_tier": "flex"},
        {"user": "someone"},
        {"search": {"strategy": "beam_search", "n": 4, "m": 2}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "6*7?"}]}]},
    ],
)
async def test_what_does_not_change_the_answer_is_the_same_question(caching: World, fields: Json) -> None:
    await ask(caching)
    reply = await ask(caching, **fields)
    assert was_cached(reply)
    assert len(reply["choices"]) == min(fields.get("n", 1), len(reply["search"]["answers"]))


def called(*more: Json, **arguments: str) -> list[Json]:
    """A conversation with a call and its result."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments)}}
    result = {"role": "tool", "tool_call_id": "c", "content": "21"}
    return [*turns("Warm?"), {"role": "assistant", "content": None, "tool_calls": [call]}, result, *more]


async def test_results_and_calls_are_part_of_a_conversation(caching: World) -> None:
    """The same words behind another call, or behind another result, are another question."""
    asked, same = ({"role": "user", "content": text} for text in ("Sure?", "Sure ?"))
    for first, second, similar in (
        (called(city="Rome"), called(city="Oslo"), False),
        (called(asked, city="Rome"), called(same, city="Rome"), True),
        (called(asked, city="Bern"), called(same, city="Bonn"), False),
    ):
        assert not was_cached(await ask(caching, messages=first, seed=None))
        assert was_cached(await ask(caching, messages=first, seed=None))
        assert was_cached(await ask(caching, messages=second, seed=None)) is similar
    # With tools nothing is kept.
    tools = [{"type": "function", "function": {"name": "f"}}]
    for _ in range(2):
        assert not was_cached(await ask(caching, messages=called(city="Rome"), seed=None, tools=tools))


async def test_another_key_is_not_answered(matcher: AnswerMatcher, caching: World) -> None:
    shared = World(matcher, keys=[KEY, OTHER], answer_cache={}, isolate_keys=False)
    for world in (caching, shared):
        await ask(world)
        assert not was_cached(await ask(world, key=OTHER))
        assert was_cached(await ask(world, key=KEY))


async def test_a_stream_has_the_same_events(caching: World) -> None:
    def chunks(reply: httpx.Response) -> list[Any]:
        data = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        events = [json.loads(each) for each in data]
        for each in events:
            assert each["id"].startswith("chatcmpl-")
            del each["id"], each["created"]
        return events

    asked = chat(stream=True, stream_options={"include_usage": True})
    first, again = [chunks(await sent(caching, **asked)) for _ in range(2)]
    kinds = [each["search_event"]["type"] for each in first if "search_event" in each]
    assert kinds.count("step_scored") == first[-2]["search"]["nodes"] > 1
    assert "steps_pruned" in kinds
    assert again[:-2] == first[:-2]
    assert (first[-2]["search"]["cached"], again[-2]["search"]["cached"]) == (False, True)
    assert (first[-1]["usage"]["total_tokens"] > 0, again[-1]["usage"]["total_tokens"]) == (True, 0)
    plain = await ask(caching)
    assert was_cached(plain)
    content = "".join(each["choices"][0]["delta"].get("content") or "" for each in first if each["choices"])
    assert plain["choices"][0]["message"]["content"] == content


async def test_responses_share_the_answers_of_chats(caching: World) -> None:
    chatted = await ask(caching, seed=None)
    reply = (await sent(caching, "/v1/responses", model="m", input="6*7?")).json()
    assert was_cached(reply)
    assert reply["output"][-1]["content"][0]["text"] == chatted["choices"][0]["message"]["content"]
    assert (reply["status"], reply["store"], reply["usage"]["total_tokens"]) == ("completed", True, 0)
    streamed = await sent(caching, "/v1/responses", model="m", input="6*7?", stream=True)
    types = [line.removeprefix("event: ") for line in streamed.text.split("\n") if line.startswith("event: ")]
    assert types.count("response.reasoning_text.delta") == chatted["search"]["nodes"]
    assert types[-1] == "response.completed"


async def test_log_probabilities_are_those_of_the_search(caching: World) -> None:
    first, again = [await ask(caching, logprobs=True) for _ in range(2)]
    assert was_cached(again)
    assert first["choices"][0]["logprobs"]["content"] != []
    assert again["choices"] == first["choices"]


async def test_a_tree_is_always_searched_for(caching: World) -> None:
    await ask(caching)
    for _ in range(2):
        reply = await ask(caching, "/v1/search")
        assert not was_cached(reply)
        assert len(reply["tree"]["nodes"]) == reply["search"]["nodes"]
    assert not was_cached(await ask(caching, seed=5))


async def test_a_stored_search_is_stored_again(caching: World) -> None:
    first = await ask(caching, store=True)
    again = await ask(caching, store=True)
    assert was_cached(again)
    async with caching.client as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        stored = (await client.get(f"/v1/searches/{again['search']['search_id']}")).json()
        original = (await client.get(f"/v1/searches/{first['search']['search_id']}")).json()
    assert (stored["status"], stored["reply"]) == ("finished", again)
    assert (stored["nodes"], stored["generated_tokens"]) == (original["nodes"], original["generated_tokens"])


async def test_a_request_may_refuse_the_cache(caching: World) -> None:
    assert not was_cached(await ask(caching, control="no-store", seed=None))
    first = await ask(caching, seed=None)
    assert not was_cached(first), "no-store keeps nothing"
    assert not was_cached(await ask(caching, control="no-store", seed=None))
    assert (await ask(caching, seed=None))["search"]["seed"] == first["search"]["seed"]
    fresh = await ask(caching, control="max-age=0, No-Cache", seed=None)
    assert not was_cached(fresh)
    again = await ask(caching, seed=None)
    assert was_cached(again)
    assert again["search"]["seed"] == fresh["search"]["seed"] != first["search"]["seed"]


async def test_batches_neither_use_nor_fill_the_cache(caching: World) -> None:
    owner = store_owner(key_record(KEY))
    async with caching.client_of(owner) as client:
        for _ in range(2):
            reply = await client.post(CHAT, chat())
            assert not was_cached(reply)
    assert caching.answers is not None
    assert len(caching.answers) == 0


async def test_a_hit_counts_as_a_request_and_costs_no_tokens(matcher: AnswerMatcher) -> None:
    limits = KeyLimits(tokens_per_minute=1_000, places=1)
    world = World(matcher, records=[key_record(KEY).model_copy(update={"limits": limits})], answer_cache={})
    cost = (await ask(world))["usage"]["total_tokens"]
    assert 4 + STEP_TOKENS < cost < 1_000
    for _ in range(1_000 // cost + 2):
        assert was_cached(await ask(world))
    world.generator.gate.clear()
    waiting = asyncio.create_task(ask(world, seed=2))
    while not world.generator.running:
        await asyncio.sleep(0)
    async with world.client as client:
        refused = await client.post(CHAT, json=chat(), headers={"Authorization": f"Bearer {KEY}"})
    assert refused.status_code == 429
    world.generator.gate.set()
    await waiting


async def test_incomplete_answers_are_searched_for_again(caching: World) -> None:
    caching.scorer.error = ScorerError("no reply")
    assert (await ask(caching))["search"]["degraded"]
    caching.scorer.error = None
    assert not was_cached(await ask(caching))
    for _ in range(2):
        reply = await ask(caching, max_completion_tokens=STEP_TOKENS)
        assert (reply["search"]["stop_reason"], was_cached(reply)) == ("tokens", False)
        assert reply["choices"][0]["finish_reason"] == "length"


async def test_an_answer_that_a_budget_has_left_is_kept(caching: World) -> None:
    for again in (False, True):
        reply = await ask(caching, max_completion_tokens=6 * STEP_TOKENS)
        assert (reply["search"]["stop_reason"], was_cached(reply)) == ("tokens", again)
        assert reply["choices"][0]["finish_reason"] == "stop"


async def test_a_question_that_means_the_same_is_answered_with_a_note(caching: World) -> None:
    first = await ask(caching, seed=None, messages=turns("Tell me what 6*7 is."))
    again = await ask(caching, seed=None, messages=turns("Tell me, what is 6*7?"))
    assert was_cached(again)
    assert again["choices"] == first["choices"]
    [note] = again["search"]["notes"]
    assert note == "answered as an earlier question that means the same (similarity 1.000): Tell me what 6*7 is."
    assert (await ask(caching, seed=None, messages=turns("Tell me what 6*7 is.")))["search"]["notes"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": turns("Tell me, what is 6*8?")},
        {"messages": turns("Zxy 6*7")},
        {"messages": turns("Hi", "Hello", "Tell me, what is 6*7?")},
        {"messages": [{"role": "system", "content": "Be brief."}, *turns("Tell me, what is 6*7?")]},
        {"messages": turns("Tell me, what is 6*7?"), "seed": 1},
        {"messages": turns("Tell me, what is 6*7?"), "temperature": 0.3},
        {"messages": turns("Tell me, what is 6*7?", "It is"), "continue_final_message": True},
        {"messages": turns("Tell me, what is 6*7?"), "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
async def test_what_does_not_mean_the_same_is_searched_for(caching: World, fields: Json) -> None:
    await ask(caching, seed=None, messages=turns("Tell me what 6*7 is."))
    assert not was_cached(await ask(caching, **{"seed": None, **fields}))


async def test_within_one_conversation_a_question_that_means_the_same_is_answered(caching: World) -> None:
    before = ("What is 2*3?", "It is 6.")
    await ask(caching, seed=None, messages=turns(*before, "Tell me what 6*7 is."))
    assert was_cached(await ask(caching, seed=None, messages=turns(*before, "Tell me, what is 6*7?")))
    other = ("What is 2*3?", "It is 7.")
    assert not was_cached(await ask(caching, seed=None, messages=turns(*other, "Tell me, what is 6*7?")))
    assert not was_cached(await ask(caching, key=OTHER, seed=None, messages=turns(*before, "Tell me, what is 6*7?")))


async def test_without_the_setting_nothing_is_kept(world: World) -> None:
    assert world.answers is None
    async with world.client as client:
        for _ in range(2):
            assert not was_cached((await client.post(CHAT, json=chat())).json())


async def test_a_search_that_fails_leaves_nothing(make_world: Callable[..., World]) -> None:
    world = make_world(answer_cache={}, fallback="fail")
    world.scorer.error = ScorerError("no reply")
    async with world.client as client:
        assert (await client.post(CHAT, json=chat())).status_code == 503
    assert isinstance(world.answers, AnswerCache)
    assert len(world.answers) == 0
