"""A thought that the chat template opens reaches the search, and the exported tree."""

import pytest
from http_world import World, chat

pytestmark = pytest.mark.asyncio

THINKING = {"chat_template_kwargs": {"opens_thought": True}}


async def test_answers_in_a_thought_that_the_template_opens_do_not_count(world: World) -> None:
    async with world.client as client:
        thinking = (await client.post("/v1/search", json=chat(**THINKING))).json()
        plain = (await client.post("/v1/search", json=chat())).json()
    assert thinking["search"]["answer"] is None, "every box stands in the thought, which never ends"
    assert thinking["tree"]["open_thought"] == "<think>"
    assert plain["search"]["answer"] in ("41", "42")
    assert "open_thought" not in plain["tree"]


async def test_a_prefill_may_end_the_thought(world: World) -> None:
    messages = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "Six sevens.\n</think>\n\n"}]
    async with world.client as client:
        body = chat(messages=messages, continue_final_message=True, **THINKING)
        reply = (await client.post("/v1/search", json=body)).json()
    assert reply["search"]["answer"] in ("41", "42")
