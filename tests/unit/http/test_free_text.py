"""Replies to questions whose answers are free text."""

from typing import Any

import pytest
from http_world import World, chat

from search.answers.equivalence import AnswerMatcher

NOTE = "no answer could be extracted, so whole texts were compared; meanings among them: 2"
BY_LETTERS = {"embedding": "http_world:letter_counts", "threshold": 0.9}


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        (("zzz", "Stone on stone.", "stones on  a stone"), {"text_answers": BY_LETTERS}),
        (("zzz", "Stone on stone.", "stone  on stone."), {}),
    ],
)
async def test_the_reply_is_the_medoid_and_says_that_no_answer_was_extracted(
    matcher: AnswerMatcher, texts: tuple[str, ...], settings: dict[str, Any]
) -> None:
    world = World(matcher, **settings)
    world.generator.texts = texts
    async with world.client as client:
        body = chat(search={"strategy": "self_consistency", "n": 3})
        reply = (await client.post("/v1/chat/completions", json=body)).json()
    assert reply["choices"][0]["message"]["content"] == "Stone on stone."
    assert reply["search"]["answer"] is None
    assert reply["search"]["agreement"] == pytest.approx(2 / 3)
    assert NOTE in reply["search"]["notes"]
