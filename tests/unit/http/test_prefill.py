"""The last message, the assistant's, as the beginning of every path."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_world import World, chat

from deployments.config import AppConfig
from deployments.http.chat.conversation import question
from deployments.http.chat.jobs import Jobs
from deployments.http.chat.schema import ChatRequest
from deployments.http.chat.search_settings import SettingsResolver

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "6*7?"}
GIVEN = "6 * 7 = 42.\n\n"


def continued(text: Any = GIVEN, **fields: Any) -> dict[str, Any]:
    messages = [USER, {"role": "assistant", "content": text}]
    return chat(messages=messages, continue_final_message=True) | fields


async def posted(world: World, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    async with world.client as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


async def test_the_search_begins_at_its_end(world: World) -> None:
    plain = await posted(world, chat(), "/v1/search")
    reply = await posted(world, continued(add_generation_prompt=False), "/v1/search")
    assert reply["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + len(GIVEN)
    assert [node["text"] for node in reply["tree"]["nodes"]] == [node["text"] for node in plain["tree"]["nodes"]]
    assert reply["choices"][0]["message"]["content"].startswith("step 1"), "the reply does not repeat what was given"
    assert world.scorer.questions == {"6*7?"}
    parts = [{"type": "text", "text": GIVEN[:5]}, {"type": "text", "text": GIVEN[5:]}]
    assert (await posted(world, continued(parts), "/v1/search"))["tree"] == reply["tree"]


async def test_the_job_says_what_was_given(world: World) -> None:
    jobs = world._endpoint.jobs
    body = continued("One.\n\nTwo", logprobs=True)
    job = jobs.search(ChatRequest.parse(body))
    assert job.prefill == (("One.\n\n",), "Two")
    assert job.prompt.token_ids == tuple(map(ord, "<user>6*7?One.\n\nTwo"))
    assert jobs.search(ChatRequest.parse(chat())).prefill == ((), "")


async def test_the_reward_models_question_ends_before_it() -> None:
    request = ChatRequest.parse(continued())
    assert question(request.conversation, conversation=False) == "6*7?"
    assert question(request.conversation, conversation=True) == "6*7?"


async def test_a_stop_text_counts_after_it(world: World) -> None:
    """Step by step, as its_hub asks: the next step is the content."""
    body = continued("step 0\n\n", stop="\n\n", search={"strategy": "greedy"})
    reply = await posted(world, body)
    assert reply["choices"][0]["message"]["content"].startswith("step 1")
    assert "\n" not in reply["choices"][0]["message"]["content"]


async def test_the_length_left_is_the_contexts(world: World) -> None:
    for tokens, status in [(501, 200), (502, 400)]:
        async with world.client as client:
            reply = await client.post(CHAT, json=continued("x" * tokens))
        assert reply.status_code == status, reply.text
    assert reply.json()["error"]["code"] == "context_length_exceeded"


async def test_its_steps_leave_room_for_what_the_reward_models_format_adds_to_each(world: World) -> None:
    prm = {"family": "label_turns", "model": "none", "max_model_len": 2048}
    config = AppConfig.model_validate({"generator": {"served_name": "m", "max_model_len": 2048}, "prm": prm})
    jobs = Jobs(config, world.live, SettingsResolver.of(config), world.encoder)
    left = [jobs.search(ChatRequest.parse(continued(text, max_tokens=2000))) for text in ("1234567", "a\n\nb\n\nc")]
    assert config.search_context < 2048
    assert left[0].settings.max_path_tokens == 2000
    assert left[1].settings.max_path_tokens == config.search_context - left[1].prompt.size - 2 * 12


@pytest.mark.parametrize("score", [True, False])
async def test_a_request_says_whether_it_is_scored(world: World, score: bool) -> None:
    search = {"strategy": "best_of_n", "n": 4, "aggregation": "min"}
    reply = await posted(world, continued(search=search | {"score_prefill": score}))
    plain = await posted(world, chat(search=search))
    assert reply["search"]["scored_steps"] - plain["search"]["scored_steps"] == score


async def test_a_stream_does_not_repeat_it_either(world: World) -> None:
    plain = await posted(world, continued())
    body = continued(stream=True, stream_options={"include_usage": True})
    async with world.client as client:
        lines = (await client.post(CHAT, json=body)).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == plain["choices"][0]["message"]["content"]
    told = [chunk["search_event"] for chunk in chunks if "search_event" in chunk]
    events = [event["text"] for event in told if event["type"] == "step_scored"]
    assert events
    assert not any(text.startswith(GIVEN) for text in events)
    assert chunks[-1]["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


async def test_the_exported_tree_has_the_rewards_of_its_steps(world: World) -> None:
    search = {"strategy": "best_of_n", "n": 2, "aggregation": "min"}
    tree = (await posted(world, continued(search=search), "/v1/search"))["tree"]
    assert tree["prefill_rewards"] == [world.scorer._reward(GIVEN)]
    assert "prefill_rewards" not in (await posted(world, chat(search=search), "/v1/search"))["tree"]


async def test_a_stored_search_and_a_line_of_a_batch_are_the_same(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world(store={"path": str(tmp_path / "store")})
    reply = await posted(world, continued(store=True))
    async with world.client as client:
        kept = (await client.get(f"/v1/searches/{reply['id']}")).json()
    assert (kept["status"], kept["prompt_tokens"]) == ("finished", reply["usage"]["prompt_tokens"])
    assert kept["reply"]["choices"] == reply["choices"]
    status, _, content = await world._inside.answer("POST", CHAT, json.dumps(continued()).encode())
    assert (status, json.loads(content)["choices"]) == (200, reply["choices"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"model": "m", "input": [USER, {"role": "assistant", "content": "6"}]}),
        ("/v1/completions", {"model": "m", "prompt": "abc", "use_beam_search": True}),
    ],
)
async def test_other_routes_refuse_it_by_name(world: World, path: str, body: dict[str, Any]) -> None:
    async with world.client as client:
        error = (await client.post(path, json=body | {"continue_final_message": True})).json()["error"]
    assert error["param"] == "continue_final_message"
    assert "/v1/chat/completions" in error["message"]


ASSISTANT = {"role": "assistant", "content": "6"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [USER]}, "messages.0.role"),
        ({"messages": [USER, ASSISTANT, USER]}, "messages.2.role"),
        ({"messages": [ASSISTANT]}, "messages.0.role"),
        ({"messages": [USER, ASSISTANT, ASSISTANT]}, "messages.1.role"),
        ({"messages": [USER, ASSISTANT | {"content": ""}]}, "messages.1.content"),
        ({"messages": [USER, ASSISTANT | {"content": " \n"}]}, "messages.1.content"),
        ({"messages": [USER, ASSISTANT], "continue_final_message": False}, "messages.1.role"),
        ({"messages": [USER, ASSISTANT], "continue_final_message": None}, "messages.1.role"),
        ({"messages": [USER], "continue_final_message": None, "add_generation_prompt": False}, "add_generation_prompt"),
        ({"add_generation_prompt": True}, "add_generation_prompt"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"echo": True}, "echo"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "continue_final_message"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"extra_body": {"continue_final_message": False}}, "extra_body"),
        ({"extra_body": {"search": {"n": 4}}}, "extra_body"),
        ({"extra_body": [1]}, "extra_body"),
        ({"search": {"score_prefill": 1}}, "search.score_prefill"),
    ],
)
async def test_what_cannot_be_continued_is_refused_by_its_path(world: World, fields: Any, param: str) -> None:
    async with world.client as client:
        reply = await client.post(CHAT, json=continued() | fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert world.generator.calls == 0
