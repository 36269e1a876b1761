"""Fields that change nothing are ignored; what would change the answer, and what may be a misspelling, is refused."""

import json
from typing import Any, get_type_hints

import pytest
from http_world import World, chat
from openai.types import completion_create_params as completion
from openai.types.chat import completion_create_params as completions
from openai.types.responses import response_create_params as response
from pydantic import BaseModel

from deployments.config import AppConfig
from deployments.http.chat.schema import ChatRequest, CompletionBody
from deployments.http.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MAX_NAME_CHARS,
    MAX_NAMED,
    MAX_UNKNOWN,
    RESPONSES_FIELDS,
    FieldRules,
)
from deployments.http.responses.schema import ResponsesRequest
from search.answers.equivalence import AnswerMatcher

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
USER = {"role": "user", "content": "6*7?"}
BEAM = {"model": "m", "prompt": "abc", "use_beam_search": True, "n": 2, "max_tokens": 3}


def after(**fields: Any) -> dict[str, Any]:
    """A conversation in which a message of the assistant has these fields."""
    return {"messages": [USER, {"role": "assistant", "content": "42", **fields}, USER]}


SENT: dict[str, tuple[dict[str, Any], str | None]] = {
    "editors": ({"messages": [{**USER, "id": 1, "opts": {"visible": False}}]}, "messages.id, messages.opts"),
    "coding agents": ({"messages": [{**USER, "agent": "cli"}]}, "messages.agent"),
    "LiteLLM": (after(provider_specific_fields={"refusal": None}), "messages.provider_specific_fields"),
    "gateways": (after(reasoning_details=[{"type": "reasoning.text", "text": "x"}]), "messages.reasoning_details"),
    "cached parts": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "6*7?", "cache_control": {"type": "ephemeral"}}],
                }
            ]
        },
        "messages.content.cache_control",
    ),
    "no content": (after(content=None), None),
    "no parts": (after(content=[]), None),
    "load generators' streams": (
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        None,
    ),
    "load generators": ({"ignore_eos": True}, "ignore_eos"),
    "no penalty": ({"repetition_penalty": 1.0}, None),
    "no special tokens": ({"skip_special_tokens": True}, None),
    "a prompt for the assistant": ({"add_generation_prompt": True}, None),
    "no guide": ({"guided_json": None, "guided_choice": []}, None),
    "verbosity": ({"verbosity": "medium"}, None),
    "retention": ({"prompt_cache_retention": "24h"}, None),
    "usage, not streamed": ({"stream": False, "stream_options": {"include_usage": True}}, None),
    "an empty stop": ({"stop": [""]}, None),
    "whole numbers with a point": (
        {"max_tokens": 64.0, "n": 1.0, "seed": 1.0, "top_k": 5e0, "search": {"n": 4.0, "budget": {"tokens": 1e5}}},
        None,
    ),
    "evaluation tools": ({"logprobs": True, "top_logprobs": 1}, None),
    "vLLM's defaults": ({"min_tokens": 0, "length_penalty": 1.0, "ignore_eos": False, "bad_words": []}, None),
    "unknown nulls": ({"thinking_mode": None}, None),
}


@pytest.mark.parametrize("client", SENT)
async def test_what_changes_nothing_is_ignored(world: World, client: str) -> None:
    fields, unknown = SENT[client]
    async with world.client as http:
        reply = await http.post(CHAT, content=json.dumps(chat(**fields)), headers={"content-type": "application/json"})
    assert reply.status_code == 200, reply.text
    if not fields.get("stream"):
        notes = [note for note in reply.json()["search"]["notes"] if "unknown" in note]
        assert notes == ([f"unknown fields have no effect here: {unknown}"] if unknown else [])


async def test_an_ignored_field_leaves_the_answer_as_it_is(world: World) -> None:
    async with world.client as client:
        plain = (await client.post("/v1/search", json=chat())).json()
        other = (await client.post("/v1/search", json=chat(agent="cli", ignore_eos=True, stop=""))).json()
    assert other["tree"] == plain["tree"]
    assert other["choices"] == plain["choices"]


async def test_alternatives_to_the_tokens_are_not_reported_and_the_notes_say_so(world: World) -> None:
    async with world.client as client:
        reply = (await client.post(CHAT, json=chat(logprobs=True, top_logprobs=1))).json()
    assert {str(token["top_logprobs"]) for token in reply["choices"][0]["logprobs"]["content"]} == {"[]"}
    assert reply["search"]["notes"] == ["top_logprobs: alternatives to the written tokens are not reported"]


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        (CHAT, {"repetition_penalty": 1.2}, "repetition_penalty", "not supported"),
        (CHAT, {"skip_special_tokens": False}, "skip_special_tokens", "not supported"),
        (CHAT, {"guided_json": {"type": "object"}}, "guided_json", "not supported"),
        (CHAT, {"structured_outputs": {"regex": "a"}}, "structured_outputs", "not supported"),
        (CHAT, {"min_tokens": 5}, "min_tokens", "not supported"),
        (CHAT, {"verbosity": "low"}, "verbosity", "not supported"),
        (CHAT, {"web_search_options": {}}, "web_search_options", "not supported"),
        (CHAT, {"top_logprobs": 2, "logprobs": True}, "top_logprobs", "less than or equal to 1"),
        (CHAT, {"max_tokens": 64.5}, "max_tokens", "valid integer"),
        (CHAT, {"seed": 1e300}, "seed", "valid integer"),
        (CHAT, {"search": {"n": 4.5}}, "search.n", "valid integer"),
        (CHAT, {"extra_body": {"search": {"n": 8}}}, "extra_body", "beside the others"),
        (CHAT, {"max_output_tokens": 5}, "max_output_tokens", "use max_completion_tokens"),
        (CHAT, {"reasoning": {"effort": "low"}}, "reasoning", "use reasoning_effort"),
        (CHAT, {"serach": {"n": 8}}, "serach", "did you mean search?"),
        (CHAT, {"temprature": 0}, "temprature", "did you mean temperature?"),
        (CHAT, {"maxTokens": 5}, "maxTokens", "did you mean max_tokens?"),
        (CHAT, {"repitition_penalty": 1.2}, "repitition_penalty", "did you mean repetition_penalty?"),
        (CHAT, {"strategy": "greedy"}, "strategy", "did you mean search.strategy?"),
        (CHAT, {"search": {"widht": 4}}, "search.widht", "unknown field: search.widht"),
        (CHAT, {"search": {"max_dept": 4}}, "search.max_dept", "did you mean search.max_depth?"),
        (CHAT, {"search": {"stategy": "greedy"}}, "search.stategy", "did you mean search.strategy?"),
        (CHAT, {"search": {"budget": {"tokns": 4}}}, "search.budget.tokns", "did you mean search.budget.tokens?"),
        (CHAT, {"messages": [USER, {"role": "system", "content": None}]}, "messages.1.content", "empty"),
        (CHAT, {"messages": [{**USER, "content": []}]}, "messages.0.content", "empty"),
        (CHAT, {f"f{number}": 1 for number in range(MAX_UNKNOWN + 1)}, f"f{MAX_UNKNOWN}", "more than"),
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity", "medium"),
        (RESPONSES, {"frequency_penalty": 1}, "frequency_penalty", "not supported"),
        (RESPONSES, {"reasoning": {"efort": "low"}}, "reasoning.efort", "did you mean reasoning.effort?"),
        (COMPLETIONS, {"repetition_penalty": 1.2}, "repetition_penalty", "not supported"),
        (COMPLETIONS, {"stop": ["x"]}, "stop", "not supported"),
        (COMPLETIONS, {"beam_width": 3}, "beam_width", "use n, or best_of"),
        (COMPLETIONS, {"lenght_penalty": 3}, "lenght_penalty", "did you mean length_penalty?"),
        (COMPLETIONS, {"search": {"n": 3}}, "search", "at /v1/chat/completions"),
    ],
)
async def test_what_would_change_the_answer_is_refused(
    world: World, path: str, fields: dict[str, Any], param: str, said: str
) -> None:
    good = {CHAT: chat(), RESPONSES: {"model": "m", "input": "6*7?"}, COMPLETIONS: BEAM}[path]
    body = json.dumps({**good, **fields})
    async with world.client as client:
        reply = await client.post(path, content=body, headers={"content-type": "application/json"})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error
    assert said in error["message"]
    assert world.generator.calls == 0
    assert world.generator.beams == []


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.0, "stop": [""], "top_p": 0.9, "stream": False, "suffix": ""},
        {"agent": "cli", "logprobs": None, "logit_bias": {}, "echo": False, "max_tokens": 3.0},
    ],
)
async def test_token_level_beam_search_ignores_what_changes_nothing(world: World, fields: dict[str, Any]) -> None:
    async with world.client as client:
        plain, reply = [(await client.post(COMPLETIONS, json=BEAM | each)).json() for each in ({}, fields)]
    assert reply["choices"] == plain["choices"]


class TestStrictMode:
    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            (CHAT, chat(agent="cli"), "agent"),
            (CHAT, chat(agent=None), "agent"),
            (CHAT, chat(messages=[{**USER, "agent": "cli"}]), "messages.0.agent"),
            (CHAT, chat(stream_options={"every": 1}, stream=True), "stream_options.every"),
            (CHAT, chat(temprature=0), "temprature"),
            (RESPONSES, {"model": "m", "input": [{**USER, "agent": "cli"}]}, "input.0.agent"),
            (COMPLETIONS, BEAM | {"agent": "cli"}, "agent"),
        ],
    )
    async def test_unknown_fields_are_refused(
        self, matcher: AnswerMatcher, path: str, body: dict[str, Any], param: str
    ) -> None:
        async with World(matcher, http={"unknown_fields": "refuse"}).client as client:
            reply = await client.post(path, json=body)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"], error["code"]) == (400, param, "unknown_parameter"), error

    async def test_what_openais_clients_know_is_taken(self, matcher: AnswerMatcher) -> None:
        async with World(matcher, http={"unknown_fields": "refuse"}).client as client:
            reply = await client.post(CHAT, json=chat(verbosity="medium", user="me", tools=[]))
            assert reply.status_code == 200, reply.text

    async def test_a_batch_line_is_a_request_like_others(self, matcher: AnswerMatcher) -> None:
        for mode, status in (("ignore", 200), ("refuse", 400)):
            world = World(matcher, http={"unknown_fields": mode})
            body = json.dumps(chat(agent="cli")).encode()
            answered, _, _ = await world._inside.answer("POST", CHAT, body)
            assert answered == status

    def test_any_other_mode_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"http\.unknown_fields"):
            AppConfig.model_validate({"http": {"unknown_fields": "allow"}})


async def test_a_note_is_short_however_much_is_unknown(world: World) -> None:
    names = {f"{number:02}{'x' * 900}": 1 for number in range(MAX_UNKNOWN)}
    async with world.client as client:
        [note] = (await client.post(CHAT, json=chat(**names))).json()["search"]["notes"]
    assert note.endswith(f" and {MAX_UNKNOWN - MAX_NAMED} more")
    assert len(note) < (MAX_NAME_CHARS + 2) * (MAX_NAMED + 1)


@pytest.mark.parametrize(
    ("types", "model", "rules"),
    [
        (completions.CompletionCreateParamsStreaming, ChatRequest, CHAT_FIELDS),
        (response.ResponseCreateParamsStreaming, ResponsesRequest, RESPONSES_FIELDS),
        (completion.CompletionCreateParamsStreaming, CompletionBody, COMPLETION_FIELDS),
    ],
)
def test_every_field_of_openais_client_is_known(types: Any, model: type[BaseModel], rules: FieldRules) -> None:
    sent = get_type_hints(types).keys()
    assert len(sent) > 15
    assert sent <= model.model_fields.keys() | rules.ignored | rules.unsupported.keys()
    assert rules.reasons.keys() <= rules.unsupported.keys()
    assert not rules.ignored & rules.unsupported.keys()
