"""Several choices and their log-probabilities, and the fields with which a client sets sampling and effort."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from http_world import DEPTH, STEP_TOKENS, World, chat, served
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import ChoiceLogprobs
from pydantic import ValidationError

from deployments.config import AppConfig
from deployments.startup.access import AccessError, changed_settings, read_user_config
from search.answers.voting import ANSWER_RULES, AnswerGroup, SelectionRule, best_groups
from search.tree import Node

CHAT = "/v1/chat/completions"
WIDE = {"strategy": "best_of_n", "n": 8}


async def posted(world: World, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    async with world.client as client:
        reply = await client.post(path, json=chat(**fields))
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


async def streamed(world: World, **fields: Any) -> list[dict[str, Any]]:
    async with world.client as client:
        reply = await client.post(CHAT, json=chat(stream=True, **fields))
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


class TestSeveral:
    async def test_choices_are_the_best_distinct_answers_with_their_scores(self, world: World) -> None:
        one = await posted(world, search=WIDE)
        reply = await posted(world, search=WIDE, n=2)
        first, second = reply["choices"]
        assert first == one["choices"][0]
        assert {first["answer"], second["answer"]} == {"41", "42"}
        scores = {each["answer"]: each["score"] for each in reply["search"]["answers"]}
        assert [first["score"], second["score"]] == [scores[first["answer"]], scores[second["answer"]]]
        for index, choice in enumerate(reply["choices"]):
            assert choice["index"] == index
            assert choice["message"]["content"].endswith(f"\\boxed{{{choice['answer']}}}")
        assert reply["search"]["notes"] == []
        assert reply["usage"] == one["usage"], "choices are chosen, not searched for"

    async def test_fewer_answers_give_fewer_choices_and_a_note(self, world: World) -> None:
        reply = await posted(world, search=WIDE, n=5)
        assert len(reply["choices"]) == 2
        assert reply["search"]["notes"] == ["2 distinct answers were found, not n = 5"]
        greedy = await posted(world, model="m:greedy", n=2)
        assert len(greedy["choices"]) == 1

    async def test_a_search_without_an_answer_has_one_choice(self, world: World) -> None:
        reply = await posted(world, search={"max_depth": 1}, n=3)
        [choice] = reply["choices"]
        assert (choice["answer"], choice["finish_reason"]) == (None, "length")

    async def test_streamed_choices_are_the_same(self, world: World) -> None:
        plain = await posted(world, search=WIDE, n=2)
        chunks = [chunk["choices"][0] for chunk in await streamed(world, search=WIDE, n=2)]
        for choice in plain["choices"]:
            own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
            assert own[0]["delta"]["role"] == "assistant"
            assert "".join(chunk["delta"].get("content", "") for chunk in own) == choice["message"]["content"]
            assert (own[-1]["finish_reason"], own[-1]["score"]) == (choice["finish_reason"], choice["score"])

    def test_the_selection_rule_orders_all_choices(self) -> None:
        def group(answer: str, votes: int, weight: float, score: float) -> AnswerGroup:
            return AnswerGroup(answer, 1, votes, 0.0, weight, Node((0,), None), score)  # type: ignore[arg-type]

        groups = [group("a", 1, 0.9, 0.2), group("b", 3, 0.5, 0.1), group("c", 2, 0.7, 0.9)]
        ordered = {rule: "".join(each.answer for each in best_groups(groups, rule)) for rule in ANSWER_RULES}
        assert ordered == {SelectionRule.WEIGHTED: "acb", SelectionRule.MAJORITY: "bca", SelectionRule.NAIVE: "cab"}


class TestLogprobs:
    async def test_are_those_of_the_answering_path_token_by_token(self, world: World) -> None:
        told = await posted(world, logprobs=True, top_logprobs=0)
        plain = await posted(world)
        assert plain["choices"][0]["logprobs"] is None
        logprobs = ChoiceLogprobs.model_validate(told["choices"][0].pop("logprobs"))
        assert {**plain["choices"][0], "logprobs": 0} == {**told["choices"][0], "logprobs": 0}
        assert logprobs.content is not None
        # The fake's last token of a solution has an empty text.
        assert [token.logprob for token in logprobs.content] == [-0.25] * STEP_TOKENS * (DEPTH - 1)
        assert all(bytes(token.bytes or []).decode() == token.token for token in logprobs.content)

    async def test_end_where_the_text_is_stopped(self, world: World) -> None:
        cut = await posted(world, logprobs=True, stop=" 1", search={"strategy": "greedy"})
        assert cut["choices"][0]["message"]["content"] == "step"
        assert len(cut["choices"][0]["logprobs"]["content"]) == 2  # of three letters each

    async def test_streamed_come_with_the_content(self, world: World) -> None:
        plain = await posted(world, logprobs=True)
        chunks = [chunk["choices"][0] for chunk in await streamed(world, logprobs=True)]
        [told] = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
        assert told == plain["choices"][0]["logprobs"]

    async def test_can_be_refused_in_the_search_field(self, world: World) -> None:
        reply = await posted(world, logprobs=True, search={"logprobs": False})
        assert reply["choices"][0]["logprobs"] is None


class TestSampling:
    async def test_top_k_and_min_p_reach_the_generator(self, world: World) -> None:
        await posted(world, top_k=20, min_p=0.05, top_p=0.9)
        assert {(each.top_k, each.min_p, each.top_p) for each in world.generator.samplings} == {(20, 0.05, 0.9)}

    @pytest.mark.parametrize("top_k", [-1, 0, None])
    async def test_every_spelling_of_all_tokens_disables_top_k(self, world: World, top_k: int | None) -> None:
        await posted(world, top_k=top_k)
        assert {each.top_k for each in world.generator.samplings} == {0}

    async def test_the_search_field_overrides_top_k_and_min_p(self, world: World) -> None:
        await posted(world, top_k=20, min_p=0.05, search={"top_k": 4, "min_p": 0.0})
        assert {(each.top_k, each.min_p) for each in world.generator.samplings} == {(4, 0.0)}


class TestTemplateKwargs:
    async def test_kwargs_reach_the_template_and_unread_ones_are_noted(self, world: World) -> None:
        plain = await posted(world)
        reply = await posted(world, chat_template_kwargs={"enable_thinking": False, "colour": "red"})
        assert reply["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]
        assert reply["search"]["notes"] == ["chat_template_kwargs.colour: the model's chat template does not read it"]


class TestEffort:
    async def test_tokens_rise_with_effort(self, world: World) -> None:
        replies = [await posted(world, reasoning_effort=effort) for effort in ("low", "medium", "high")]
        assert [reply["search"]["n"] for reply in replies] == [4, 16, 64]
        low, medium, high = (reply["usage"]["completion_tokens"] for reply in replies)
        assert low < medium < high

    async def test_none_is_the_default_search(self, world: World) -> None:
        replies = [await posted(world, **asked) for asked in ({}, {"reasoning_effort": None})]
        assert [reply["search"]["n"] for reply in replies] == [4, 4]

    @pytest.mark.parametrize(
        ("fields", "strategy", "n"),
        [
            ({"search": {"n": 8}}, "beam_search", 8),
            ({"search": {"strategy": "best_of_n", "n": 2}}, "best_of_n", 2),
            ({"model": "m:sc-3"}, "self_consistency", 3),
        ],
    )
    async def test_the_search_field_overrides_the_effort(
        self, world: World, fields: dict[str, Any], strategy: str, n: int
    ) -> None:
        block = (await posted(world, reasoning_effort="high", **fields))["search"]
        assert (block["strategy"], block["n"]) == (strategy, n)

    async def test_an_effort_above_the_operators_caps_is_lowered(self, make_world: Callable[..., World]) -> None:
        world = make_world(limits={"n": 10})
        assert (await posted(world, reasoning_effort="high"))["search"]["n"] == 8  # a multiple of m = 4

    async def test_operators_can_define_efforts_and_change_them_live(self, make_world: Callable[..., World]) -> None:
        world = make_world(efforts={"minimal": {"strategy": "greedy"}})
        assert (await posted(world, reasoning_effort="minimal"))["search"]["strategy"] == "greedy"
        assert (await posted(world, reasoning_effort="low"))["search"]["n"] == 4
        told = read_user_config({"controller": {"efforts": {"low": {"strategy": "best_of_n", "n": 2}}}})
        world.live.change(changed_settings(world.config, told))
        assert (await posted(world, reasoning_effort="low"))["search"]["strategy"] == "best_of_n"
        assert (await posted(world, reasoning_effort="high"))["search"]["n"] == 64

    def test_an_invalid_effort_is_refused_by_its_path(self) -> None:
        with pytest.raises(ValidationError) as refused:
            AppConfig.model_validate({"controller": {"efforts": {"high": {"strategy": "beam_search", "n": 0}}}})
        assert refused.value.errors()[0]["loc"] == ("controller", "efforts", "high", "n")
        told = read_user_config({"controller": {"efforts": {"low": {"strategy": "none such"}}}})
        with pytest.raises(AccessError, match=r"user_config\.controller\.efforts\.low\.strategy"):
            changed_settings(AppConfig(), told)


async def test_reasoning_is_sent_beside_reasoning_content(world: World) -> None:
    message = (await posted(world))["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"]) == (None, None)
    deltas = [chunk["choices"][0]["delta"] for chunk in await streamed(world)]
    told = [(delta["reasoning"], delta["reasoning_content"]) for delta in deltas if "reasoning" in delta]
    assert told
    assert all(one == other for one, other in told)


async def test_the_official_client_reads_all_fields(world: World) -> None:
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "6*7?"}], "seed": 1, "n": 2}
    extra = {"search": WIDE, "top_k": 40, "min_p": 0.01, "chat_template_kwargs": {"enable_thinking": True}}
    async with served(world) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        plain = await client.chat.completions.create(
            **asked, logprobs=True, extra_body={"search": WIDE, "reasoning_effort": "low"}
        )
        ChatCompletion.model_validate(plain.model_dump())
        assert [choice.index for choice in plain.choices] == [0, 1]
        async with client.chat.completions.stream(**asked, extra_body=extra) as stream:
            complete = await stream.get_final_completion()
        texts = [choice.message.content for choice in plain.choices]
        assert [choice.message.content for choice in complete.choices] == texts
