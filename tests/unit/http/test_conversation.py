"""The messages that models see: the operator's, the client's, and the question."""

from collections.abc import Callable
from typing import Any

import pytest
from http_world import World, chat
from pydantic import ValidationError

from deployments.admission.errors import BadRequest
from deployments.config import AppConfig, PromptSettings
from deployments.http.chat.conversation import question, turns
from deployments.http.chat.schema import ChatRequest

EXAMPLES = [{"question": "1+1?", "answer": "\\boxed{2}"}]
SHOWN = "user: 1+1?|assistant: \\boxed{2}"
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "6*7?"}


def read(prompt: dict[str, Any], *messages: dict[str, Any]) -> str:
    """The messages for the chat template, in one line."""
    request = ChatRequest.parse(chat(messages=list(messages)))
    given = turns(request.conversation, PromptSettings.model_validate(prompt))
    return "|".join(f"{turn['role']}: {turn['content']}" for turn in given)


@pytest.mark.parametrize(
    ("prompt", "messages", "given"),
    [
        ({}, [USER], "user: 6*7?"),
        ({}, [SYSTEM, SYSTEM, USER], "system: Be brief.|system: Be brief.|user: 6*7?"),
        ({"system": "Think."}, [USER], "system: Think.|user: 6*7?"),
        ({"system": "Think."}, [SYSTEM, USER], "system: Think.\n\nBe brief.|user: 6*7?"),
        ({"system": "Think.", "client_system": "replace"}, [SYSTEM, USER], "system: Be brief.|user: 6*7?"),
        ({"system": "Think.", "client_system": "replace"}, [USER], "system: Think.|user: 6*7?"),
        ({"system": "Think.", "client_system": "refuse"}, [USER], "system: Think.|user: 6*7?"),
        ({"client_system": "refuse"}, [SYSTEM, USER], "system: Be brief.|user: 6*7?"),
        ({"examples": EXAMPLES}, [USER], f"{SHOWN}|user: 6*7?"),
        ({"examples": EXAMPLES}, [SYSTEM, USER], f"system: Be brief.|{SHOWN}|user: 6*7?"),
        ({"system": "Think.", "examples": EXAMPLES}, [USER, SYSTEM, USER], None),
    ],
)
def test_the_operators_messages_come_first(
    prompt: dict[str, Any], messages: list[dict[str, Any]], given: str | None
) -> None:
    later = f"system: Think.|{SHOWN}|user: 6*7?|system: Be brief.|user: 6*7?"
    assert read(prompt, *messages) == (given or later)


ASSISTANT = {"role": "assistant", "content": "42"}
DEVELOPER = {"role": "developer", "content": "Be brief."}
EMPTY = {"role": "user", "content": ""}
PARTS = [{"type": "text", "text": text} for text in ("Start with 14", "", "9. What is the result?")]


@pytest.mark.parametrize(
    ("messages", "given", "asked"),
    [
        ([USER, SYSTEM], "user: 6*7?|system: Be brief.", "6*7?"),
        ([USER, DEVELOPER], "user: 6*7?|system: Be brief.", "6*7?"),
        ([SYSTEM, USER, SYSTEM, DEVELOPER], "system: Be brief.|user: 6*7?|system: Be brief.|system: Be brief.", "6*7?"),
        ([SYSTEM], "user: Be brief.", "Be brief."),
        ([DEVELOPER], "user: Be brief.", "Be brief."),
        ([SYSTEM, {"role": "system", "content": "6*7?"}], "system: Be brief.|user: 6*7?", "6*7?"),
        ([ASSISTANT, SYSTEM], "assistant: 42|user: Be brief.", "Be brief."),
        ([USER, ASSISTANT, SYSTEM], "user: 6*7?|assistant: 42|system: Be brief.", "Be brief."),
        ([EMPTY, ASSISTANT, USER], "user: |assistant: 42|user: 6*7?", "6*7?"),
        ([{**USER, "content": None}, {**USER, "content": []}, USER], "user: |user: |user: 6*7?", "6*7?"),
        ([{**SYSTEM, "content": None}, USER], "system: |user: 6*7?", "6*7?"),
        ([EMPTY, SYSTEM], "user: |system: Be brief.", "Be brief."),
        ([USER, EMPTY, SYSTEM], "user: 6*7?|user: |system: Be brief.", "6*7?"),
        (
            [{**USER, "content": PARTS}],
            "user: Start with 14\n9. What is the result?",
            "Start with 14\n9. What is the result?",
        ),
        ([{**SYSTEM, "content": PARTS[:1] * 2}, USER], "system: Start with 14\nStart with 14|user: 6*7?", "6*7?"),
    ],
)
def test_histories_as_clients_send_them(messages: list[dict[str, Any]], given: str, asked: str) -> None:
    assert read({}, *messages) == given
    assert question(ChatRequest.parse(chat(messages=messages)).conversation, conversation=False) == asked


@pytest.mark.parametrize(
    "messages", [[SYSTEM, EMPTY], [USER, {**SYSTEM, "content": " "}], [{**DEVELOPER, "content": []}]]
)
def test_the_last_message_must_say_something(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(BadRequest, match="empty") as refused:
        read({}, *messages)
    assert refused.value.param == f"messages.{len(messages) - 1}.content"


def test_a_system_message_alone_is_the_question_below_the_operators_messages() -> None:
    prompt = {"system": "Think.", "examples": EXAMPLES}
    for client_system in ("append", "replace", "refuse"):
        assert read({**prompt, "client_system": client_system}, SYSTEM) == f"system: Think.|{SHOWN}|user: Be brief."


def test_a_system_message_may_be_refused_by_its_path() -> None:
    with pytest.raises(BadRequest) as refused:
        read({"system": "Think.", "client_system": "refuse"}, SYSTEM, USER)
    assert refused.value.param == "messages.0.role"
    with pytest.raises(BadRequest) as refused:
        read({"system": "Think.", "client_system": "refuse"}, USER, SYSTEM, USER)
    assert refused.value.param == "messages.1.role", "wherever it stands"


def test_the_question_is_the_last_message_or_all_of_them() -> None:
    told = [USER, {"role": "assistant", "content": "42"}, {"role": "user", "content": "Sure?"}]
    messages = ChatRequest.parse(chat(messages=told)).conversation
    assert question(messages, conversation=False) == "Sure?"
    assert question(messages, conversation=True) == "User: 6*7?\n\nAssistant: 42\n\nUser: Sure?"
    assert question(messages[:1], conversation=True) == "6*7?"


async def test_the_configured_prompt_is_read_and_prm_reads_sets_the_reward_models_question(
    make_world: Callable[..., World],
) -> None:
    plain, prompted = (
        make_world(),
        make_world(prompt={"system": "Think.", "examples": EXAMPLES}, prm_reads="conversation"),
    )
    tokens = []
    for world in (plain, prompted):
        async with world.client as client:
            reply = await client.post("/v1/chat/completions", json=chat(messages=[SYSTEM, USER]))
        tokens.append(reply.json()["usage"]["prompt_tokens"])
    shown = "<system>Think.\n\nBe brief.<user>1+1?<assistant>\\boxed{2}<user>6*7?"
    assert tokens == [len("<system>Be brief.<user>6*7?"), len(shown)]
    assert plain.scorer.questions == {"6*7?"}
    assert prompted.scorer.questions == {"System: Be brief.\n\nUser: 6*7?"}, "no examples of the operator's"


@pytest.mark.parametrize(
    ("prompt", "path"),
    [
        ({"system": ""}, ("system",)),
        ({"client_system": "ignore"}, ("client_system",)),
        ({"examples": [{"question": "1+1?"}]}, ("examples", 0, "answer")),
        ({"examples": [{"question": "1+1?", "answer": "2", "n": 1}]}, ("examples", 0, "n")),
    ],
)
def test_an_invalid_prompt_is_refused_by_its_path(prompt: dict[str, Any], path: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        AppConfig.model_validate({"controller": {"prompt": prompt}})
    assert refused.value.errors()[0]["loc"] == ("controller", "prompt", *path)
