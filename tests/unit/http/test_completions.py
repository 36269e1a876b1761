"""``/v1/completions``: token-level beam search as vLLM's users know it."""

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from http_world import World, generator_is_dead

from search.errors import GeneratorError
from search.ports import TokenBeamReply, TokenBeamRequest
from search.token_beam import MAX_WIDTH

pytestmark = pytest.mark.asyncio

GOOD: dict[str, Any] = {"model": "m", "prompt": "abc", "use_beam_search": True}


async def post(world: World, body: dict[str, Any]) -> Any:
    async with world.client as client:
        return await client.post("/v1/completions", json=body)


async def test_a_beam_past_its_deadline_times_out(make_world: Callable[..., World]) -> None:
    """Whatever error the last replica returns then."""
    world = make_world(limits={"seconds": 0.01})

    async def late(request: TokenBeamRequest) -> TokenBeamReply:
        await asyncio.sleep(2 * request.deadline_s)
        raise GeneratorError("no reply until its deadline")

    world.generator.token_beam = late
    reply = await post(world, GOOD)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")


async def test_each_prompt_gets_n_sequences_in_order(world: World) -> None:
    reply = await post(world, GOOD | {"prompt": ["abc", "de"], "n": 2, "best_of": 3, "max_tokens": 5})
    body = reply.json()
    assert reply.status_code == 200, body
    assert body["object"] == "text_completion"
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in body["choices"]] == [
        (0, "a", "stop"),
        (1, "b", "length"),
        (2, "a", "stop"),
        (3, "b", "length"),
    ]
    assert body["choices"][1]["cumulative_logprob"] == -2.0
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    [request] = world.generator.beams
    assert request.prompts == ((97, 98, 99), (100, 101))
    assert (request.settings.width, request.settings.max_tokens) == (3, 5)


@pytest.mark.parametrize(
    ("prompt", "encoded"),
    [
        ("ab", ((97, 98),)),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a", [5]], ((97,), (5,))),
    ],
)
async def test_prompts_are_texts_or_token_ids(world: World, prompt: Any, encoded: Any) -> None:
    assert (await post(world, GOOD | {"prompt": prompt})).status_code == 200
    assert world.generator.beams[0].prompts == encoded


async def test_settings_are_passed_to_the_engine(world: World) -> None:
    await post(world, GOOD | {"skip_reading_prefix_cache": True, "length_penalty": 2, "ignore_eos": True, "n": 4})
    settings = world.generator.beams[0].settings
    assert settings.skip_reading_prefix_cache is True
    assert (settings.length_penalty, settings.ignore_eos) == (2.0, True)
    assert settings.concurrency_limit == 64 // 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt.1"),
        ({"prompt": ["a", 5]}, "prompt.1"),
        ({"prompt": [[1], [1, "x"]]}, "prompt.1"),
        ({"prompt": [1, 256]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt.1"),
        ({"prompt": "x" * 500}, "prompt"),
        ({"prompt": "a\0"}, "prompt"),
        ({"use_beam_search": False}, "use_beam_search"),
        ({"use_beam_search": None}, "use_beam_search"),
        ({"n": 0}, "n"),
        ({"n": MAX_WIDTH + 1}, "n"),
        ({"n": "2"}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"temperature": 0.7}, "temperature"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"stream": True}, "stream"),
        ({"echo": True}, "echo"),
        ({"logprobs": 3}, "logprobs"),
        ({"beam_width": 3}, "beam_width"),
        ({"model": "oracle"}, "model"),
    ],
)
async def test_errors_name_the_wrong_field(world: World, fields: dict[str, Any], param: str) -> None:
    reply = await post(world, GOOD | fields)
    assert reply.status_code == (404 if "model" in fields else 400), reply.text
    assert reply.json()["error"]["param"] == param
    assert world.generator.beams == []


async def test_a_dead_generator_is_503(world: World) -> None:
    world.generator.error = generator_is_dead()
    reply = await post(world, GOOD)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "generator_unavailable"


async def test_the_official_client(world: World) -> None:
    async with world.client as http:
        client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="unused", http_client=http, max_retries=0)
        reply = await client.completions.create(
            model="m", prompt="abc", n=2, best_of=2, extra_body={"use_beam_search": True}
        )
    assert [choice.text for choice in reply.choices] == ["a", "b"]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 7
