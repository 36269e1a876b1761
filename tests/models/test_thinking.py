"""The marks and the given texts of models that think, with their published tokenizers and chat templates: Qwen3, and
DeepSeek-R1, whose later template opens the thought in the prompt."""

from typing import NamedTuple

import pytest
from transformers import PreTrainedTokenizerBase
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.reasoning import ReasoningParserManager

from deployments.engines.encoding import ChatEncoder
from deployments.engines.reasoning import Marks, marks_of
from deployments.engines.step_splitter import StepSplitter
from search.answers.thoughts import parts
from search.tree import StepEnd
from tests.models.conftest import load_tokenizer

QUESTION = [{"role": "user", "content": "What is 6 * 7? Not </think> or <think>."}]
EMPTY_LINE, NEWLINE = 271, 198
THOUGHT = "\nSix sevens.\n\nThat is 42, or \\boxed{41}?\n</think>"
SOLUTION = "\n\nFirst, 6 * 7.\n\nIt is \\boxed{42}."


class Thinker(NamedTuple):
    """A published model that thinks."""

    name: str
    parser: str
    opening: int
    closing: int
    opened: bool = False
    """Whether its chat template opens the thought."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        tokenizer = load_tokenizer(self.name)
        if self.opened:  # The one change that its makers made to the template after a month.
            template = tokenizer.chat_template
            assert isinstance(template, str)
            before, turn, behind = template.rpartition("'<｜Assistant｜>'")
            tokenizer.chat_template = f"{before}'<｜Assistant｜><think>\\n'{behind}"
            assert turn
        return tokenizer

    @property
    def marks(self) -> Marks:
        found = marks_of(None, self.tokenizer)
        assert found is not None
        return found


THINKERS = {
    "Qwen3": Thinker("Qwen3", "qwen3", 151667, 151668),
    "DeepSeek-R1": Thinker("DeepSeek-R1", "deepseek_r1", 151648, 151649),
    "DeepSeek-R1, opened": Thinker("DeepSeek-R1", "deepseek_r1", 151648, 151649, opened=True),
}


@pytest.fixture(scope="module", params=THINKERS)
def thinker(request: pytest.FixtureRequest) -> Thinker:
    return THINKERS[request.param]


@pytest.fixture(scope="module")
def tokenizer(thinker: Thinker) -> PreTrainedTokenizerBase:
    return thinker.tokenizer


@pytest.fixture(scope="module")
def marks(thinker: Thinker) -> Marks:
    return thinker.marks


def test_its_marks_are_found_from_its_template(
    thinker: Thinker, tokenizer: PreTrainedTokenizerBase, marks: Marks
) -> None:
    assert marks == marks_of(thinker.parser, tokenizer)
    assert marks.tokens == (thinker.opening, thinker.closing)
    assert ("Considering the limited time by the user" in marks.sentence) == (thinker.parser == "qwen3")


def test_a_model_that_does_not_think_has_none() -> None:
    assert marks_of(None, load_tokenizer("Qwen2.5")) is None
    with pytest.raises(ValueError, match="no token <think> and no token </think>"):
        marks_of("qwen3", load_tokenizer("Qwen2.5"))


def test_a_prompt_opens_the_thought_where_the_template_does(
    thinker: Thinker, tokenizer: PreTrainedTokenizerBase, marks: Marks
) -> None:
    encoder = ChatEncoder(tokenizer, marks)
    prompt = encoder.encode_chat(QUESTION)
    assert encoder.open_thought(QUESTION) == ("<think>" if thinker.opened else "")
    tail = [thinker.opening, NEWLINE] if thinker.opened else []
    assert [token for token in prompt if token in (thinker.opening, thinker.closing)] == tail[:1], (
        "a question's are text"
    )
    assert prompt[len(prompt) - len(tail) :] == tail
    assert not encoder.thought_is_over(prompt)


def test_the_tokens_that_it_is_given_spell_its_marks(
    thinker: Thinker, tokenizer: PreTrainedTokenizerBase, marks: Marks
) -> None:
    encoder = ChatEncoder(tokenizer, marks)
    opening, end, no_thought = encoder.given_tokens
    assert opening == (thinker.opening,)
    for given in (end, no_thought):
        assert given[-2:] == (thinker.closing, EMPTY_LINE)
        assert thinker.opening not in given
        assert encoder.thought_is_over([*encoder.encode_chat(QUESTION), *given])
    if thinker.parser == "qwen3":
        thinking, silent = (
            encoder.encode_chat(QUESTION, template_kwargs={"enable_thinking": wanted}) for wanted in (True, False)
        )
        assert silent == [*thinking, *opening, *no_thought]
        assert encoder.open_thought(QUESTION, {"enable_thinking": False}) == ""


def test_a_solution_is_one_thought_and_the_steps_behind_it(
    thinker: Thinker, tokenizer: PreTrainedTokenizerBase, marks: Marks
) -> None:
    eos = tokenizer.eos_token_id
    encoder, splitter = ChatEncoder(tokenizer, marks), StepSplitter(tokenizer, "\n\n", frozenset({eos}), marks)
    prompt = encoder.encode_chat(QUESTION)
    thought = THOUGHT.lstrip() if thinker.opened else f"<think>{THOUGHT}"
    ids = [*encoder.encode_text(thought + SOLUTION, written=True), eos]
    first, second = splitter.split(prompt, ids, cut_off=False, thought=splitter.thought_in(prompt, ids, thinker.opened))
    assert first.text[: first.thought.characters] == thought
    assert (first.solution, second.text) == ("First, 6 * 7.\n\n", "It is \\boxed{42}.")
    assert first.token_ids[: first.thought.tokens][-1] == thinker.closing
    endless = encoder.encode_text(thought.removesuffix("</think>") + SOLUTION, written=True)
    whole = splitter.thought_in(prompt, endless, thinker.opened)
    [only] = splitter.split(prompt, endless, cut_off=True, thought=whole)
    assert (only.thought.tokens, only.solution, only.end) == (len(endless), "", StepEnd.LENGTH)


@pytest.mark.parametrize("behind", [f"</think>{SOLUTION}", "", "</think>"])
def test_a_reply_is_parted_where_vllms_parser_parts_it(
    thinker: Thinker, tokenizer: PreTrainedTokenizerBase, marks: Marks, behind: str
) -> None:
    encoder, splitter = ChatEncoder(tokenizer, marks), StepSplitter(tokenizer, "\n\n", frozenset(), marks)
    text = ("" if thinker.opened else "<think>\n") + "Six sevens.\n\nThat is 42.\n" + behind
    ids = encoder.encode_text(text, written=True)
    thought = splitter.thought_in((), ids, thinker.opened)
    told = splitter.step(ids, True, thought=thought).thought.characters
    ours = parts(text, "<think>" if thinker.opened else "", told)
    parser = ReasoningParserManager.get_reasoning_parser(thinker.parser)(tokenizer)
    reasoning, content = parser.extract_reasoning(text, ChatCompletionRequest(model="m", messages=[]))
    assert ours.thinking == (reasoning or "").strip()
    assert text[ours.start :] == (content or "").strip()


def test_thinking_of_earlier_turns_is_left_out(
    thinker: Thinker, tokenizer: PreTrainedTokenizerBase, marks: Marks
) -> None:
    encoder = ChatEncoder(tokenizer, marks)
    answered = {"role": "assistant", "content": "<think>\nI guess.\n</think>\n\nNoon."}
    prompt = encoder.encode_chat([*QUESTION, answered, *QUESTION])
    written = str(tokenizer.decode(prompt))
    assert "I guess" not in written
    assert "Noon." in written
    assert prompt.count(thinker.opening) == thinker.opened
    assert thinker.closing not in prompt


def test_qwen3s_template_gets_the_thinking_of_the_turns_that_it_writes() -> None:
    thinker = THINKERS["Qwen3"]
    tokenizer, marks = thinker.tokenizer, thinker.marks
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": {}}}
    thought = {"reasoning_content": "I ask <|im_end|>.", "reasoning": "I ask <|im_end|>."}
    called = {"role": "assistant", "content": "", "tool_calls": [call], **thought}
    result = {"role": "tool", "tool_call_id": "c", "name": "now", "content": "noon"}
    encoder = ChatEncoder(tokenizer, marks)
    open_loop = encoder.encode_chat([*QUESTION, called, result])
    assert "<think>\nI ask <|im_end|>.\n</think>\n\n<tool_call>" in str(tokenizer.decode(open_loop))
    assert open_loop.count(thinker.opening) == 1
    ended = encoder.encode_chat([*QUESTION, called, result, {"role": "assistant", "content": "Noon."}, *QUESTION])
    assert thinker.opening not in ended, "thinking of earlier turns is left out"
