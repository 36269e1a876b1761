"""Served searches in which the model reads its solutions: what replies say, and what the model is told."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from http_world import Letters, World, chat

from deployments.engines.rewards.execution import ExecutionScorer, ExecutionSettings
from search.answers.equivalence import AnswerMatcher

PRM = {"family": "execution", "program_seconds": 60.0}
WRONG = "Here:\n```python\ndef f(x):\n    return 2 * x\n```"
QUESTION = "Write it.\n\n```python\n>>> f(1)\n2\n>>> f(5)\n6\n```"


async def test_the_reply_says_what_the_readers_chose_and_wrote(matcher: AnswerMatcher) -> None:
    world = World(matcher, max_model_len=4096)
    # Each branch writes the text of its index: every reader the first one.
    world.generator.texts = ("So \\boxed{1}.\nJudgment: 1", "So \\boxed{2}.", "So \\boxed{2}.")
    search = {"strategy": "select", "n": 3, "readers": 2, "contested": 0.9}
    async with world.client as client:
        block = (await client.post("/v1/chat/completions", json=chat(search=search))).json()["search"]
    assert block["strategy"] == "select"
    assert block["contexts"] == 2
    assert [reader["text"] for reader in block["readers"]] == [world.generator.texts[0]] * 2
    # They saw the two answers in opposite orders, so each was chosen once, and the vote decides.
    chosen = {tuple(reader["chosen"]) for reader in block["readers"]}
    assert len(chosen) == 2
    assert (block["answer"], block["agreement"]) == ("2", 0.5)


async def test_a_vote_that_is_not_contested_is_not_read(matcher: AnswerMatcher) -> None:
    world = World(matcher, max_model_len=4096)
    async with world.client as client:
        reply = await client.post("/v1/chat/completions", json=chat(model="m:select-4"))
    block = reply.json()["search"]
    assert "readers" not in block
    assert "contexts" not in block
    assert block["prm_calls"] == 0


async def test_a_refinement_is_told_which_checks_failed(matcher: AnswerMatcher) -> None:
    scorer = ExecutionScorer(ExecutionSettings.model_validate(PRM))
    await scorer.start()
    world = World(matcher, prm=PRM, scorer=scorer, max_model_len=8192)
    world.generator.texts = (WRONG,)
    body = chat(messages=[{"role": "user", "content": QUESTION}], search={"strategy": "refine", "n": 1, "depth": 1})
    async with world.client as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    told = world.generator.prompts[-1]
    assert "The candidate's program failed 1 of 2 checks:\n- f(5)\n  it shows 10, and must show 6" in told
    assert "from 0 (wrong) to 1 (right), in their order: 0.50." in told
    await scorer.close()
    assert world.code_answers is not None
    await world.code_answers.aclose()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"search": {"strategy": "fuse", "schedule": [4, 2], "rounds": 1}}, "search.rounds"),
        ({"search": {"strategy": "select", "votes": 3}}, "search.votes"),
        ({"search": {"strategy": "fuse"}, "response_format": {"type": "json_object"}}, "response_format"),
        (
            {
                "search": {"strategy": "refine"},
                "messages": [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "It"}],
                "continue_final_message": True,
            },
            "messages",
        ),
    ],
)
async def test_what_these_strategies_cannot_do_is_refused_by_name(
    matcher: AnswerMatcher, fields: dict[str, Any], path: str
) -> None:
    world = World(matcher, max_model_len=4096)
    async with world.client as client:
        reply = await client.post("/v1/chat/completions", json=chat(**fields))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, path)


class Alternating(Letters):
    """As chat templates of Mistral: a question only behind an answer."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        if [each["role"] for each in messages[-2:]] == ["tool", "user"]:
            raise ValueError("After a tool's result comes an answer.")
        return super().encode_chat(messages, **options)


@pytest.mark.parametrize(("encoder", "status"), [(Letters, 200), (Alternating, 400)])
async def test_a_further_message_that_the_chat_template_does_not_take_is_refused(
    matcher: AnswerMatcher, encoder: type[Letters], status: int
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "product", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "6*7?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    world = World(matcher, max_model_len=8192, encoder=encoder())
    async with world.client as client:
        for strategy, expected in (("select", status), ("greedy", 200)):
            body = chat(messages=messages, search={"strategy": strategy})
            reply = await client.post("/v1/chat/completions", json=body)
            assert reply.status_code == expected, reply.text
            if expected == 400:
                assert reply.json()["error"]["param"] == "messages"
                assert reply.json()["error"]["message"].endswith("not take: After a tool's result comes an answer.")
                assert world.generator.prompts == []


async def test_a_default_schedule_is_lowered_to_the_cap(matcher: AnswerMatcher) -> None:
    default = {"strategy": "fuse", "schedule": [8, 4, 1]}
    world = World(matcher, max_model_len=4096, default_search=default, limits={"n": 4})
    async with world.client as client:
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        own = chat(search={"schedule": [2, 5]})
        refused = (await client.post("/v1/chat/completions", json=own)).json()["error"]
    assert (refused["param"], refused["code"]) == ("search.schedule", "above_limit")
