"""Fields that clients of OpenAI's API send by default, and fields of replies that they send back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_world import World, chat

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
LM_EVAL = {
    "messages": [{"role": "user", "content": "6*7?"}],
    "model": "m",
    "max_tokens": 256,
    "temperature": 0,
    "stop": ["Question:", "</s>"],
    "seed": 1234,
}
"""The body of lm-eval 0.4.13's ``local-chat-completions``, with ``until`` as in the task ``gsm8k``."""
USER = {"role": "user", "content": "6*7?"}


async def posted(world: World, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    async with world.client as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


async def refused(world: World, body: dict[str, Any]) -> str:
    async with world.client as client:
        reply = await client.post(CHAT, json=body)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]["param"]  # type: ignore[no-any-return]


def text(reply: dict[str, Any]) -> str:
    return reply["choices"][0]["message"]["content"]  # type: ignore[no-any-return]


async def test_lm_evals_request_is_a_search_that_samples(world: World) -> None:
    reply = await posted(world, LM_EVAL, "/v1/search")
    assert reply["search"]["temperature"] == 0.8
    [note] = reply["search"]["notes"]
    assert "temperature 0" in note
    first_steps = {node["text"] for node in reply["tree"]["nodes"] if len(node["id"]) == 1}
    assert len(first_steps) > 1
    plain = await posted(world, chat(seed=1234))
    assert (text(reply), plain["search"]["notes"]) == (text(plain), [])


class TestStop:
    @pytest.mark.parametrize(
        ("stop", "left"),
        [
            ("\\boxed", "{steps}"),
            (["nowhere", "\n\nstep 2"], "{first}"),
            ("\n\n", "{first}"),
            ("step", ""),
            (["nowhere"], "{whole}"),
            (["", "\n\n"], "{first}"),
            ("", "{whole}"),
            ([""], "{whole}"),
            ([], "{whole}"),
            (None, "{whole}"),
        ],
    )
    async def test_the_content_ends_before_the_stop_and_the_tree_is_unchanged(
        self, world: World, stop: Any, left: str
    ) -> None:
        plain = await posted(world, chat(search={"strategy": "greedy"}), "/v1/search")
        cut = await posted(world, chat(search={"strategy": "greedy"}, stop=stop), "/v1/search")
        whole = text(plain)
        first, steps = whole.partition("\n\n")[0], whole.partition("\\boxed")[0]
        assert text(cut) == left.format(whole=whole, first=first, steps=steps)
        assert cut["tree"] == plain["tree"]
        assert cut["choices"][0]["finish_reason"] == "stop"
        assert cut["search"]["answer"] == (plain["search"]["answer"] if text(cut) == whole else None)
        assert cut["usage"] == plain["usage"]

    async def test_streamed_and_plain_content_are_the_same(self, world: World) -> None:
        plain = await posted(world, chat(stop="\\boxed"))
        async with world.client as client:
            streamed = await client.post(CHAT, json=chat(stop="\\boxed", stream=True))
        assert "\\boxed" not in text(plain)
        assert f'"delta":{{"content":"{text(plain)}"}}'.replace("\n", "\\n") in streamed.text

    async def test_a_truncated_path_ends_by_length_unless_a_stop_came_first(self, world: World) -> None:
        short = {"search": {"max_depth": 1}}
        reasons = [
            (await posted(world, chat(**short, **stop)))["choices"][0]["finish_reason"]
            for stop in ({}, {"stop": "nowhere"}, {"stop": "step"})
        ]
        assert reasons == ["length", "length", "stop"]

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"stop": ["a"] * 5}, "stop"),
            ({"stop": 3}, "stop"),
            ({"stop": {"a": 1}}, "stop"),
            ({"search": {"stop": ""}}, "search.stop.0"),
            ({"stop": ["a", None]}, "stop.1"),
            ({"stop": "x" * 257}, "stop.0"),
            ({"stop": ["a\0b"]}, "stop.0"),
            ({"search": {"stop": ["a", 1]}}, "search.stop.1"),
        ],
    )
    async def test_an_invalid_stop_is_refused_by_its_path(self, world: World, fields: Any, param: str) -> None:
        assert await refused(world, chat(**fields)) == param


class TestMessages:
    async def test_a_developer_message_is_a_system_message(self, world: World) -> None:
        replies = [
            await posted(world, chat(messages=[{"role": role, "content": "Be brief."}, USER]), "/v1/search")
            for role in ("developer", "system")
        ]
        assert replies[0]["tree"] == replies[1]["tree"]
        assert replies[0]["usage"] == replies[1]["usage"]

    async def test_a_reply_is_accepted_as_history(self, world: World) -> None:
        given = (await posted(world, chat()))["choices"][0]["message"]
        echoed = given | {
            "reasoning_content": "[0] 0.91 6 * 7 = 42\n",
            "reasoning": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": None,
        }
        bare = {"role": "assistant", "content": given["content"]}
        trees = [
            (await posted(world, chat(messages=[USER, message, USER]), "/v1/search"))["tree"]
            for message in (given, echoed, {**echoed, "tool_calls": []}, bare)
        ]
        assert trees == [trees[0]] * 4

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("refusal", "I cannot."),
            ("function_call", {"name": "f", "arguments": "{}"}),
            ("audio", {"id": "audio_1"}),
            ("annotations", [{"type": "url_citation"}]),
            ("tool_calls", False),
        ],
    )
    async def test_message_fields_that_no_model_would_read_are_refused(
        self, world: World, field: str, value: Any
    ) -> None:
        message = {"role": "assistant", "content": "42", field: value}
        assert await refused(world, chat(messages=[USER, message, USER])) == f"messages.1.{field}"


BODIES = json.loads((Path(__file__).parent / "client_bodies.json").read_text())


@pytest.mark.parametrize("client", BODIES)
async def test_default_requests_of_clients_are_answered(make_world: Callable[..., World], client: str) -> None:
    """The fields as `make test-clients` recorded them; of agents, the turn with the results of two calls."""
    assert BODIES[client]
    world = make_world(max_model_len=4096)
    async with world.client as http:
        for path, body in BODIES[client]:
            reply = await http.post(path, json=body)
            assert reply.status_code == 200, (path, body, reply.text)
