"""Replies of models that think: the thinking, the content behind it, and the progress of the search, told apart."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from http_world import World, chat
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from deployments.http.chat.schema import ChatRequest
from deployments.http.choices import ChoiceOptions, choices, thinking_tokens
from deployments.http.progress import HEADING, step_line, without_progress
from search.answers.voting import AnswerSelection, SelectionRule
from search.run.report import SearchCost, SearchOutcome, StopReason
from search.tree import SearchTree, Step, StepEnd, Thought

Json = dict[str, Any]
MakeWorld = Callable[..., World]
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
THINKING = "six sevens,\n\nnot \\boxed{41}"
CONTENT = "It is \\boxed{42}."
WRITTEN = {
    "opened by the model": (f"<think>\n{THINKING}\n</think>\n\n{CONTENT}", {}),
    "opened by the template": (f"{THINKING}\n</think>\n\n{CONTENT}", {"chat_template_kwargs": {"opens_thought": True}}),
    "opened by a template that is not understood": (f"{THINKING}\n</think>\n\n{CONTENT}", {}),
}
every_kind = pytest.mark.parametrize(("text", "asked"), WRITTEN.values(), ids=WRITTEN.keys())


@pytest.fixture(params=[True, False], ids=["thinking told", "thinking in the text"])
def thinking_world(request: pytest.FixtureRequest, make_world: MakeWorld) -> World:
    return make_world(thinks=request.param, default_search={"strategy": "best_of_n", "n": 2})


async def replied(world: World, path: str = CHAT, **fields: Any) -> Json:
    response = await world.client.post(path, json=chat(**fields))
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


def parts_of(events: str) -> Iterator[Json]:
    for line in events.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


async def streamed(world: World, path: str = CHAT, **fields: Any) -> list[Json]:
    response = await world.client.post(path, json=chat(stream=True, **fields))
    assert response.status_code == 200, response.text
    return list(parts_of(response.text))


def deltas(chunks: Sequence[Json], field: str, index: int = 0) -> str:
    every = (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index)
    return "".join(choice["delta"].get(field) or "" for choice in every)


@every_kind
async def test_the_content_is_what_stands_behind_the_thinking(thinking_world: World, text: str, asked: Json) -> None:
    thinking_world.generator.texts = [text]
    for path in (CHAT, "/v1/search"):
        found = await replied(thinking_world, path, **asked)
        [choice] = found["choices"]
        assert choice["message"]["content"] == CONTENT
        assert choice["message"]["reasoning"] == choice["message"]["reasoning_content"] == THINKING
        assert (choice["answer"], choice["finish_reason"]) == ("42", "stop")


@every_kind
async def test_a_stream_tells_progress_from_thinking(thinking_world: World, text: str, asked: Json) -> None:
    thinking_world.generator.texts = [text]
    chunks = await streamed(thinking_world, **asked)
    assert deltas(chunks, "content") == CONTENT
    said = deltas(chunks, "reasoning_content")
    assert said == deltas(chunks, "reasoning")
    assert without_progress(said) == THINKING
    progress, _, thinking = said.partition(f"\n{HEADING}\n\n")
    assert thinking == THINKING
    beside = [chunk for chunk in chunks if "search_event" in chunk]
    assert progress == deltas(beside, "reasoning")
    assert progress.count("\n") == 2
    assert without_progress(progress) == ""


async def test_of_told_thinking_the_progress_has_the_length(make_world: MakeWorld) -> None:
    world = make_world(thinks=True, default_search={"strategy": "best_of_n", "n": 1})
    world.generator.texts = [WRITTEN["opened by the model"][0]]
    [line] = [each for each in await streamed(world) if "search_event" in each]
    assert line["search_event"]["thought"] == {"tokens": 3, "characters": len(f"<think>\n{THINKING}\n</think>")}
    assert line["choices"][0]["delta"]["reasoning"].endswith(f"■ [3 tokens of thinking] {CONTENT}\n")


@pytest.mark.parametrize("text", ["<think>\nsix sevens, \\boxed{42}", "<think>six \\boxed{42}…"])
async def test_thinking_that_never_ends_is_no_content(thinking_world: World, text: str) -> None:
    thinking_world.generator.texts = [text]
    [choice] = (await replied(thinking_world))["choices"]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning"].startswith("six")
    assert (choice["answer"], choice["finish_reason"]) == (None, "length")
    opened = {"chat_template_kwargs": {"opens_thought": True}}
    thinking_world.generator.texts = [text.removeprefix("<think>")]
    chunks = await streamed(thinking_world, **opened)
    assert deltas(chunks, "content") == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_every_choice_has_its_own_thinking(thinking_world: World) -> None:
    thinking_world.generator.texts = ["<think>a</think>\\boxed{1}", "<think>b</think>\\boxed{2}"]
    plain = (await replied(thinking_world, n=2))["choices"]
    assert {(each["message"]["reasoning"], each["message"]["content"]) for each in plain} == {
        ("a", "\\boxed{1}"),
        ("b", "\\boxed{2}"),
    }
    chunks = await streamed(thinking_world, n=2)
    for index in range(2):
        assert without_progress(deltas(chunks, "reasoning", index)) == plain[index]["message"]["reasoning"]
        assert deltas(chunks, "content", index) == plain[index]["message"]["content"]


async def test_json_may_spell_marks(thinking_world: World) -> None:
    answer = '{"answer": "<think>x</think> ends\\n</think>"}'
    schema = {"type": "json_object"}
    thinking_world.generator.texts = [f"<think>\nhm\n</think>\n{answer}"]
    if thinking_world.environment.thinking_context:
        [choice] = (await replied(thinking_world, response_format=schema))["choices"]
        assert (choice["message"]["content"], choice["message"]["reasoning"]) == (answer, "hm")
    else:
        thinking_world.generator.texts = [answer]
        [choice] = (await replied(thinking_world, response_format=schema))["choices"]
        assert (choice["message"]["content"], choice["message"]["reasoning"]) == (answer, None)


@pytest.mark.parametrize(
    "text",
    [
        "Split it: `text.split('</think>')[-1]`. \\boxed{42}",
        "Write <think> before, as in \\boxed{42}.",
        "An example:\n```\n<think>\nsix\n</think>\n```\n\\boxed{42}",
        "\n  Two lines\n\n\\boxed{42}",
    ],
)
async def test_content_may_speak_of_marks(world: World, text: str) -> None:
    world.generator.texts = [text]
    [choice] = (await replied(world, search={"strategy": "best_of_n", "n": 1}))["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == (text, None)


async def test_calls_are_read_behind_the_thinking(thinking_world: World) -> None:
    call = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    tool = {"type": "function", "function": {"name": "weather"}}
    thinking_world.generator.texts = [f"<think>\n{call % 'time'}\n</think>\n\nI ask. {call % 'weather'}"]
    [choice] = (await replied(thinking_world, tools=[tool]))["choices"]
    assert choice["message"]["content"] == "I ask. "
    assert choice["message"]["reasoning"] == call % "time"
    assert [each["function"]["name"] for each in choice["message"]["tool_calls"]] == ["weather"]
    chunks = await streamed(thinking_world, tools=[tool])
    assert deltas(chunks, "reasoning") == call % "time", "agents send it back: there is no progress in it"


async def test_forced_calls_are_read_behind_the_thinking(make_world: MakeWorld) -> None:
    world = make_world(thinks=True)
    world.generator.texts = ['<think>\nhm\n</think>\n\n{"city": "Rome"}']
    tool = {"type": "function", "function": {"name": "weather"}}
    choice = {"type": "function", "function": {"name": "weather"}}
    [found] = (await replied(world, tools=[tool], tool_choice=choice))["choices"]
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    assert found["message"]["reasoning"] == "hm"


def outcome_of(*words: str, thought: int = 0) -> tuple[SearchOutcome, Callable[[Sequence[int]], list[str]]]:
    """A path of one step with one token for each word, of which ``thought`` are told to be thinking."""
    told = Thought(thought, sum(map(len, words[:thought])))
    step = Step(
        tuple(range(len(words))),
        "".join(words),
        StepEnd.END_OF_SEQUENCE,
        token_logprobs=tuple(-0.5 * index for index in range(len(words))),
        thought=told,
    )
    tree = SearchTree(1)
    [node] = tree.request(tree.root, 1)
    tree.write(node, step, True)
    cost = SearchCost(generated_tokens=20, answer_tokens=len(words))
    selection = AnswerSelection(node, None, None, None, ())
    outcome = SearchOutcome("x", 1, tree, selection, node.text, StopReason.FINISHED, False, cost)
    return outcome, lambda ids: [words[token] for token in ids]


@pytest.mark.parametrize("thought", [0, 4])
def test_logprobs_are_those_of_the_content(thought: int) -> None:
    outcome, spell = outcome_of("<think>", "six", " sevens", "</think>", "\n\n", "It", " is 42", thought=thought)
    [choice] = choices(outcome, ChoiceOptions(1, SelectionRule.WEIGHTED, True, spell))
    assert choice.logprobs == (("It", -2.5), (" is 42", -3.0))
    assert choice.text == "".join(text for text, _ in choice.logprobs) == "It is 42"
    assert thinking_tokens(outcome, spell) == (thought or 5)


async def test_thinking_counts_as_reasoning_tokens(make_world: MakeWorld) -> None:
    world = make_world(thinks=True, default_search={"strategy": "best_of_n", "n": 2})
    world.generator.texts = [WRITTEN["opened by the model"][0]]
    usage = (await replied(world))["usage"]
    assert usage["completion_tokens"] == 10
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 8}, "all but two tokens of content"


class TestResponses:
    async def test_thinking_is_a_reasoning_item(self, thinking_world: World) -> None:
        thinking_world.generator.texts = [WRITTEN["opened by the model"][0]]
        response = await thinking_world.client.post(RESPONSES, json={"model": "m", "input": "6 * 7?"})
        thought, message = response.json()["output"]
        assert (thought["type"], thought["id"].startswith("rs_"), thought["summary"]) == ("reasoning", True, [])
        assert thought["content"] == [{"type": "reasoning_text", "text": THINKING}]
        assert message["content"][0]["text"] == CONTENT

    async def test_streams_have_progress_and_thinking_in_items_of_their_own(self, thinking_world: World) -> None:
        thinking_world.generator.texts = [WRITTEN["opened by the model"][0]]
        client = AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="x", http_client=thinking_world.client)
        async with client.responses.stream(model="m", input="6 * 7?") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        progress, thought, message = final.output
        said: dict[str, str] = {}
        for event in events:
            if event.type == "response.reasoning_text.delta":
                said[event.item_id] = said.get(event.item_id, "") + event.delta
        assert list(said) == [progress.id, thought.id]
        assert said[thought.id or ""] == THINKING
        assert without_progress(said[progress.id or ""]) == ""
        assert message.type == "message"
        assert final.output_text == CONTENT


class TestBudget:
    OFF = "<enable_thinking=False>"

    async def asked(self, world: World, **fields: Any) -> tuple[str, list[str]]:
        """The prompt, and the notes of the reply."""
        world.generator.prompts.clear()
        found = await replied(world, **fields)
        return world.generator.prompts[0], found["search"]["notes"]

    @pytest.mark.parametrize(
        "fields", [{"reasoning_effort": "none"}, {"search": {"budget": {"thinking": 0}}}], ids=["effort", "budget"]
    )
    async def test_no_thinking_is_the_templates_switch(self, thinking_world: World, fields: Json) -> None:
        prompt, notes = await self.asked(thinking_world, **fields)
        assert prompt.endswith(self.OFF)
        assert not notes
        own = {"chat_template_kwargs": {"enable_thinking": True}}
        prompt, _ = await self.asked(thinking_world, **fields, **own)
        assert prompt.endswith("<enable_thinking=True>"), "the request's own switch stays"

    async def test_responses_take_the_effort(self, thinking_world: World) -> None:
        body = {"model": "m", "input": "x", "reasoning": {"effort": "none"}}
        assert (await thinking_world.client.post(RESPONSES, json=body)).status_code == 200
        assert thinking_world.generator.prompts[0].endswith(self.OFF)

    async def test_none_keeps_the_default_search(self, make_world: MakeWorld) -> None:
        default = {"strategy": "best_of_n", "n": 3, "budget": {"tokens": 500}}
        world = make_world(thinks=True, default_search=default)
        block = (await replied(world, reasoning_effort="none"))["search"]
        assert (block["strategy"], block["n"]) == ("best_of_n", 3)
        own = make_world(efforts={"none": {"strategy": "greedy"}})
        assert (await replied(own, reasoning_effort="none"))["search"]["strategy"] == "greedy"

    async def test_presets_set_it(self, make_world: MakeWorld) -> None:
        world = make_world(thinks=True, efforts={"low": {"strategy": "greedy", "budget": {"thinking": 0}}})
        prompt, _ = await self.asked(world, reasoning_effort="low")
        assert prompt.endswith(self.OFF)
        prompt, _ = await self.asked(world, reasoning_effort="low", search={"budget": {"thinking": 100}})
        assert not prompt.endswith(">")

    async def test_caps_set_none(self, thinking_world: World) -> None:
        assert thinking_world.jobs.search(ChatRequest.parse(chat())).settings.budget.thinking is None

    async def test_a_note_says_where_it_has_no_effect(self, make_world: MakeWorld) -> None:
        world = make_world()
        _, [note] = await self.asked(world, search={"budget": {"thinking": 5}})
        assert note.startswith("budget.thinking has no effect")
        world.encoder.template_variables = frozenset()
        _, [note] = await self.asked(world, reasoning_effort="none")
        assert note.endswith("its chat template has no switch for it")
        thinking = make_world(thinks=True)
        thinking.encoder.template_variables = frozenset()
        _, notes = await self.asked(thinking, search={"budget": {"thinking": 0}})
        assert not notes, "the generator is given an empty thought"
        _, notes = await self.asked(thinking, search={"budget": {"thinking": 0}, "thinking": "steps"})
        assert len(notes) == 1


class TestHistory:
    """What clients send back of earlier replies."""

    async def told(self, world: World, **message: Any) -> str:
        """What the template gets of an assistant's message, before the next question."""
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", **message}, {"role": "user", "content": "b"}]
        world.generator.prompts.clear()
        await replied(world, messages=turns)
        prompt = world.generator.prompts[0]
        assert prompt.startswith("<user>a<assistant>")
        return prompt.removeprefix("<user>a<assistant>").removesuffix("<user>b")

    @every_kind
    async def test_a_streamed_reply_returns_without_its_progress(
        self, thinking_world: World, text: str, asked: Json
    ) -> None:
        thinking_world.generator.texts = [text]
        chunks = await streamed(thinking_world, **asked)
        said, content = deltas(chunks, "reasoning_content"), deltas(chunks, "content")
        assert "[0] " in said
        wanted = THINKING + CONTENT
        assert await self.told(thinking_world, content=content, reasoning_content=said) == wanted
        assert await self.told(thinking_world, content=content, reasoning=said) == wanted
        assert await self.told(thinking_world, content=f"<think>{said}</think>\n{content}") == wanted
        quoted = "\n".join(f"> {line}" for line in said.splitlines())
        folded = f'<details type="reasoning" done="true">\n<summary>Thought</summary>\n{quoted}\n</details>\n'
        assert await self.told(thinking_world, content=folded + content) == CONTENT

    async def test_progress_alone_never_returns(self, world: World) -> None:
        chunks = await streamed(world)
        said, content = deltas(chunks, "reasoning_content"), deltas(chunks, "content")
        assert await self.told(world, content=content, reasoning_content=said) == content
        assert await self.told(world, content=f"<think>\n{said}\n</think>\n\n{content}") == content

    async def test_thinking_in_the_content_is_left_to_the_template(self, world: World) -> None:
        text = f"<think>{THINKING}</think>{CONTENT}"
        assert await self.told(world, content=text) == text
        assert await self.told(world, content=text, reasoning_content="another") == "another" + CONTENT

    async def test_the_reward_model_reads_no_thinking_of_earlier_turns(self, make_world: MakeWorld) -> None:
        world = make_world(prm_reads="conversation")
        for field in ({"content": CONTENT, "reasoning": THINKING}, {"content": f"<think>{THINKING}</think>{CONTENT}"}):
            await self.told(world, **field)
        assert world.scorer.questions == {f"User: a\n\nAssistant: {CONTENT}\n\nUser: b"}

    @settings(max_examples=30)
    @given(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 9), min_size=1),
                st.lists(st.text() | st.sampled_from(["<think>", "</think>", "<", HEADING])).map("".join),
                st.booleans(),
            ),
            min_size=1,
        ),
        st.text(),
        st.sampled_from(["", "> ", "  "]),
    )
    def test_no_line_of_progress_returns(
        self, steps: list[tuple[list[int], str, bool]], thinking: str, margin: str
    ) -> None:
        lines = [
            step_line({"node": node, "reward": 0.5 if scored else None, "terminal": scored, "text": text})
            for node, text, scored in steps
        ]
        progress = "".join(margin + line for line in lines)
        assert without_progress(progress) == ""
        assert without_progress(f"{progress}\n{margin}{HEADING}\n\n{thinking}") == thinking.strip()
        message = {"role": "assistant", "content": f"<think>{progress}</think>42"}
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}, message, {"role": "user", "content": "y"}]}
        assert ChatRequest.parse(body).messages[1].shown == ("42", "")
