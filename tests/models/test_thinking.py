"""The marks and the given texts of Qwen3's thinking, with its published tokenizer and chat template."""

import pytest
from transformers import PreTrainedTokenizerBase

from deployments.engines.encoding import ChatEncoder
from deployments.engines.reasoning import Marks, marks_of
from deployments.engines.step_splitter import StepSplitter
from tests.models.conftest import load_tokenizer

QUESTION = [{"role": "user", "content": "What is 6 * 7? Not </think> or <think>."}]
OPENING, CLOSING, EMPTY_LINE = 151667, 151668, 271
WRITTEN = "<think>\nSix sevens.\n\nThat is 42, or \\boxed{41}?\n</think>\n\nFirst, 6 * 7.\n\nIt is \\boxed{42}."


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("Qwen3")


@pytest.fixture(scope="module")
def marks(tokenizer: PreTrainedTokenizerBase) -> Marks:
    found = marks_of(None, tokenizer)
    assert found is not None
    return found


def test_its_marks_are_found_from_its_template(tokenizer: PreTrainedTokenizerBase, marks: Marks) -> None:
    assert marks == marks_of("qwen3", tokenizer)
    assert marks.tokens == (OPENING, CLOSING)
    assert "Considering the limited time by the user" in marks.sentence
    assert marks_of(None, load_tokenizer("Qwen2.5")) is None
    with pytest.raises(ValueError, match="no token <think> and no token </think>"):
        marks_of("qwen3", load_tokenizer("Qwen2.5"))


def test_the_tokens_that_it_is_given_are_those_of_its_template(
    tokenizer: PreTrainedTokenizerBase, marks: Marks
) -> None:
    encoder = ChatEncoder(tokenizer, marks)
    opening, end, no_thought = encoder.given_tokens
    assert opening == (OPENING,)
    assert end[-2:] == (CLOSING, EMPTY_LINE)
    assert OPENING not in end
    thinking, silent = (
        encoder.encode_chat(QUESTION, template_kwargs={"enable_thinking": wanted}) for wanted in (True, False)
    )
    assert silent == [*thinking, *opening, *no_thought]
    assert {OPENING, CLOSING}.isdisjoint(thinking), "a question's marks are text"
    assert encoder.thought_is_over(silent)
    assert not encoder.thought_is_over(thinking)
    for wanted in (True, False):
        assert encoder.open_thought(QUESTION, {"enable_thinking": wanted}) == ""


def test_a_solution_is_one_thought_and_the_steps_behind_it(tokenizer: PreTrainedTokenizerBase, marks: Marks) -> None:
    eos = tokenizer.eos_token_id
    splitter = StepSplitter(tokenizer, "\n\n", frozenset({eos}), marks)
    ids = [*ChatEncoder(tokenizer, marks).encode_text(WRITTEN, written=True), eos]
    thought = splitter.thought_in((), ids, opened=False)
    first, second = splitter.split((), ids, cut_off=False, thought=thought)
    assert first.text[: first.thought.characters] == WRITTEN.partition("\n\nFirst")[0]
    assert (first.solution, second.text) == ("First, 6 * 7.\n\n", "It is \\boxed{42}.")
    assert first.token_ids[: first.thought.tokens][-1] == CLOSING


def test_its_template_gets_the_thinking_of_the_turns_that_it_writes(
    tokenizer: PreTrainedTokenizerBase, marks: Marks
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": {}}}
    thought = {"reasoning_content": "I ask <|im_end|>.", "reasoning": "I ask <|im_end|>."}
    called = {"role": "assistant", "content": "", "tool_calls": [call], **thought}
    result = {"role": "tool", "tool_call_id": "c", "name": "now", "content": "noon"}
    encoder = ChatEncoder(tokenizer, marks)

    def written(*turns: dict[str, object]) -> str:
        return str(tokenizer.decode(encoder.encode_chat([*QUESTION, *turns])))

    open_loop = written(called, result)
    assert "<think>\nI ask <|im_end|>.\n</think>\n\n<tool_call>" in open_loop
    assert encoder.encode_chat([*QUESTION, called, result]).count(OPENING) == 1
    ended = encoder.encode_chat([*QUESTION, called, result, {"role": "assistant", "content": "Noon."}, *QUESTION])
    assert OPENING not in ended, "thinking of earlier turns is left out"
    answered = {"role": "assistant", "content": "<think>\nI guess.\n</think>\n\nNoon."}
    assert "I guess" not in written(answered, *QUESTION)
