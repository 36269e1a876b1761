"""Side calls of chat windows (`controller.side_calls`): which prompts are some, and what becomes of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from http_world import World, chat
from pydantic import ValidationError
from test_admission import MakeWorld
from test_live_settings import change

from deployments.config import ControllerSettings, SideCallSettings
from deployments.http.chat.chat_windows import NOTE, as_side_call, is_side_call
from deployments.http.chat.schema import ChatRequest

CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "side_calls.json").read_text())
"""Requests of chat windows, by client and purpose, made from the templates in their public source."""
KNOWN = SideCallSettings()
TITLE = [
    {
        "role": "user",
        "content": "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only "
        "return the title itself.\n\nConversation:\nUser: 6*7?\nAI: 42",
    }
]
"""LibreChat's."""


def is_side(body: dict[str, Any], settings: SideCallSettings | None = KNOWN) -> bool:
    return is_side_call(ChatRequest.parse(body), settings)


def said(text: str, **fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": text}], **fields)


@pytest.mark.parametrize(
    ("client", "purpose"), [(client, purpose) for client, bodies in BODIES.items() for purpose in bodies]
)
def test_what_chat_windows_send(client: Any, purpose: str) -> None:
    body = BODIES[client][purpose]
    is_question = purpose.startswith("question")
    assert is_side(body) is not is_question
    assert not is_side(body, None)
    assert is_side(body, SideCallSettings(clients=(client,))) is not is_question
    assert not is_side(body, SideCallSettings(clients=()))


@pytest.mark.parametrize(
    "text",
    [
        "### Task:\nProve that 2 is prime.",
        "### Task:\nProve what is in <chat_history></chat_history> by induction.",
        "What does this prompt do? ### Task:\nGenerate a title\n<chat_history></chat_history>",
        " " * 5000 + "### Task: You are an autocompletion system.",
        "Generate a concise, 5-word-or-less title for my novel.",
    ],
)
def test_questions_are_none(text: str) -> None:
    assert not is_side(said(text))


@pytest.mark.parametrize("fields", [{"n": 2}, {"model": "m:beam-16"}, {"model": "m:greedy"}, {"search": {"n": 16}}])
def test_a_request_that_says_how_to_search_is_none(fields: dict[str, Any]) -> None:
    assert not is_side(chat(messages=TITLE, **fields))
    assert is_side(chat(messages=TITLE, n=1, search={}))


def test_only_the_first_system_message_and_the_last_message_count() -> None:
    system, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "6*7?"}
    assert is_side(chat(messages=[system, question, {"role": "assistant", "content": "42"}, *TITLE]))
    assert is_side(chat(messages=[system, *TITLE]))
    assert is_side(chat(messages=[{**TITLE[0], "role": "system"}, question]))
    assert not is_side(chat(messages=[*TITLE, {"role": "assistant", "content": "Six Times Seven"}, question]))


def test_prefixes_of_ones_own_whatever_their_whitespace() -> None:
    own = SideCallSettings(clients=(), prefixes=("Name  this\nchat:",))
    assert own.prefixes == ("Name this chat:",)
    assert is_side(said(" Name this \r\n\r\n chat: 6*7?"), own)
    assert not is_side(said("Name this chair: 6*7?"), own)
    assert not is_side(chat(messages=TITLE), own)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"clients": ["another"]}, ("side_calls", "clients", 0)),
        ({"prefixes": ["       a       "]}, ("side_calls", "prefixes", 0)),
        ({"prefixes": ["x" * 513]}, ("side_calls", "prefixes", 0)),
        ({"prefixes": ["a long one"] * 65}, ("side_calls", "prefixes")),
    ],
)
def test_malformed_settings_are_refused(settings: dict[str, Any], path: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        ControllerSettings.model_validate({"side_calls": settings})
    assert refused.value.errors()[0]["loc"] == path


def test_what_every_search_has_in_the_default_stays() -> None:
    default = {"strategy": "beam_search", "n": 16, "m": 4, "max_path_tokens": 99, "budget": {"tokens": 500}}
    asked = ChatRequest.parse(chat(messages=TITLE, temperature=0.7))
    request, search = as_side_call(asked, default, thinks=False)
    assert request.temperature is None
    assert search == {"strategy": "greedy", "max_path_tokens": 99, "budget": {"tokens": 500}}
    _, search = as_side_call(asked, default | {"thinking": "steps"}, thinks=True)
    assert (search["thinking"], search["budget"]) == ("whole", {"tokens": 500, "thinking": 0})


@pytest.mark.asyncio
async def test_a_model_that_thinks_does_not_for_them(make_world: MakeWorld) -> None:
    """Whatever the effort is, by the template's switch where it has one; and any other question is thought about."""
    world = make_world(side_calls={}, thinks=True)
    world.encoder.template_variables = frozenset({"enable_thinking"})
    async with world.client as client:
        for messages in (TITLE, [{"role": "user", "content": "6*7?"}]):
            assert (await client.post(CHAT, json=chat(messages=messages))).status_code == 200
    title, *question = (prompt.endswith("<enable_thinking=False>") for prompt in world.generator.prompts)
    assert title
    assert not any(question)
    fields = {"messages": TITLE, "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": True}}
    async with world.client as client:
        reply = (await client.post(CHAT, json=chat(**fields))).json()
    assert reply["search"]["notes"] == [NOTE]


@pytest.mark.asyncio
async def test_they_are_answered_greedily_and_the_reply_says_so(make_world: MakeWorld) -> None:
    world = make_world(side_calls={})
    fields = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 50, "reasoning_effort": "high", "metadata": {"task": "a"}}
    async with world.client as client:
        reply = (await client.post(CHAT, json=chat(messages=TITLE, **fields))).json()
        assert (reply["search"]["strategy"], reply["search"]["notes"]) == ("greedy", [NOTE])
        assert world.generator.calls == 1
        assert {sampling.temperature for sampling in world.generator.samplings} == {0.0}
        assert not world.scorer.questions

        streamed = (await client.post(CHAT, json=chat(messages=TITLE, stream=True))).text
        assert [NOTE in line for line in streamed.splitlines() if '"search":' in line] == [True]
        response = (await client.post("/v1/responses", json={"model": "m", "input": TITLE[0]["content"]})).json()
        assert response["search"]["notes"][0] == NOTE

        question = (await client.post(CHAT, json=chat())).json()
        assert (question["search"]["strategy"], question["search"]["notes"]) == ("beam_search", [])


@pytest.mark.asyncio
async def test_none_unless_set_and_it_can_be_set_while_it_serves(world: World) -> None:
    async def strategy() -> str:
        async with world.client as client:
            reply = await client.post(CHAT, json=chat(messages=TITLE))
            return reply.json()["search"]["strategy"]  # type: ignore[no-any-return]

    assert await strategy() == "beam_search"
    change(world, side_calls={"clients": ["librechat"]})
    assert await strategy() == "greedy"
    change(world)
    assert await strategy() == "beam_search"
