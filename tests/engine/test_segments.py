"""A whole solution splits into the segments that step-by-step generation writes, whatever marks the thinking."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deployments.engines.encoding import ChatEncoder
from deployments.engines.reasoning import MARKS, NO_REASONING, PLAIN_TEXT, REFUSED, Marks, marks_of, parser_name
from deployments.engines.segments import Draft, GivenTokens, Task, Until, behind_program, first_segment, following
from deployments.engines.step_splitter import StepSplitter
from search.answers.programs import output_block, programs
from search.answers.thoughts import open_thought, without_thoughts
from search.ports import Child, ThoughtRequest
from search.tree import Step, StepEnd
from tests.engine.thinking_vocabularies import (
    DEEPSEEK_R1_TEMPLATE,
    PARSERS,
    QWEN3_TEMPLATE,
    thinking_vocabulary,
)

DELIMITER = "\n\n"


class Scripted:
    """An engine that writes one text, and stops where vLLM would."""

    def __init__(self, kind: str) -> None:
        self.tokenizer = thinking_vocabulary(kind)
        self.eos = self.tokenizer.eos_token_id
        marks = marks_of(PARSERS[kind], self.tokenizer)
        assert marks is not None
        self.marks: Marks = marks
        self.splitter = StepSplitter(self.tokenizer, DELIMITER, frozenset({self.eos}), marks)
        self.given = GivenTokens(*ChatEncoder(self.tokenizer, marks).given_tokens)
        self.output = tuple(self.tokenizer.encode(output_block("ab\n\nab"), add_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        marks = self.marks
        text = text.replace("(", marks.opening).replace(")", marks.closing)
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.eos]

    def write(self, prompt: Sequence[int], stream: list[int], task: Task) -> tuple[Step, ...]:
        """Writes a branch from the beginning of ``stream``, and removes what it took."""
        segment = first_segment(task)
        draft = Draft(Child((), 0, (), 0), task, segment).began(segment)
        while True:
            stop = self.splitter.stop_at(draft.segment.until, task.tool)
            detokenizer = self.splitter._detokenizer((*prompt, *draft.token_ids), stop.strings)
            written: list[int] = []
            cut_off = False
            while True:
                written.append(token := stream.pop(0))
                at_string = detokenizer is not None and detokenizer.update([token], False) is not None
                if token == self.eos or token in stop.token_ids or at_string:
                    break
                if len(written) == draft.segment.max_tokens:
                    cut_off = True
                    break
            draft = draft.wrote(written, None)
            ending = self.splitter.ending(draft, cut_off)
            if draft.segment.until is Until.PROGRAM and ending.end is StepEnd.DELIMITER:
                segment_behind = behind_program(draft, self.output)
            else:
                segment_behind = following(draft, ending)
            if segment_behind is None:
                return self.splitter.steps(prompt, draft, ending, cut_off)
            draft = draft.began(segment_behind)

    def step_by_step(
        self, prompt: Sequence[int], stream: list[int], thought: ThoughtRequest | None, tool: bool = False
    ) -> tuple[Step, ...]:
        steps: list[Step] = []
        left = list(stream)
        while not steps or steps[-1].end is StepEnd.DELIMITER:
            path = [token for step in steps for token in step.token_ids]
            task = Task(Until.STEP, 10_000, 10_000, None if steps else thought, marks=self.given, tool=tool)
            steps += self.write((*prompt, *path), left, task)
        return tuple(steps)

    def whole(
        self, prompt: Sequence[int], stream: list[int], thought: ThoughtRequest | None, tool: bool = False
    ) -> tuple[Step, ...]:
        task = Task(Until.SOLUTION, 10_000, 10_000, thought, marks=self.given, tool=tool)
        return self.write(prompt, list(stream), task)


SCRIPTED = {kind: Scripted(kind) for kind in PARSERS}
TEXTS = st.lists(
    st.sampled_from(["ab", "\n", "\n\n", ".\n", ".\n\n", " ", "(", ")", "</", "think", ">", "é"]), max_size=24
).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*PARSERS]), TEXTS, st.booleans())
@example(kind="text", text="ab(\n\n", opened=False)
def test_a_whole_solution_splits_into_what_step_by_step_writes(kind: str, text: str, opened: bool) -> None:
    engine = SCRIPTED[kind]
    prompt, stream = engine.encode("ab" + ("(" if opened else ""))[:-1], engine.encode(text)
    thought = ThoughtRequest(opened, 10_000, False, 10_000)
    steps = engine.step_by_step(prompt, stream, thought)
    assert engine.whole(prompt, stream, thought) == steps
    assert [token for step in steps for token in step.token_ids] == stream
    assert not any(step.thought.tokens for step in steps[1:])
    first, whole = steps[0], engine.splitter.text(stream)
    thinking = first.text[: first.thought.characters]
    begins = opened or first.text.lstrip().startswith(engine.marks.opening)
    assert bool(first.thought.tokens) == begins
    if begins and (closing := engine.marks.closing) in thinking:
        assert thinking.endswith(closing)
        assert whole.index(closing) + len(closing) == len(thinking) or kind != "text"
        assert engine.splitter.text(first.token_ids[: first.thought.tokens]).startswith(thinking)
    elif begins:
        assert steps == (first,), "a thought that never ends is the only step"
        assert first.solution == ""


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*PARSERS]), TEXTS, st.booleans(), st.integers(0, 12))
@example(kind="text", text="ab(\n\n", opened=False, budget=1)
def test_with_a_budget_of_thinking_too(kind: str, text: str, opened: bool, budget: int) -> None:
    engine = SCRIPTED[kind]
    prompt, stream = engine.encode("ab" + ("(" if opened else ""))[:-1], engine.encode(text)
    thought = ThoughtRequest(opened, budget, True, 10_000)
    steps = engine.step_by_step(prompt, stream, thought)
    assert engine.whole(prompt, stream, thought) == steps
    for start, end in (first := steps[0]).given:
        assert first.token_ids[start:end] in (
            engine.given.opening,
            engine.given.closing,
            engine.given.no_thought,
            engine.given.opening + engine.given.no_thought,
        )
    written = [
        token
        for step in steps
        for index, token in enumerate(step.token_ids)
        if not any(start <= index < end for start, end in step.given)
    ]
    assert written == stream
    if opened:
        assert first.thinking_tokens <= budget


PROGRAMS = st.lists(
    st.sampled_from(["ab", "\n\n", ".\n\n", "``", "`", "```python", "```", "```python\nab\n\nab\n```", "(", ")"]),
    max_size=16,
).map("".join)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*PARSERS]), PROGRAMS, st.booleans())
def test_no_delimiter_ends_anything_in_a_program(kind: str, text: str, thinks: bool) -> None:
    engine = SCRIPTED[kind]
    prompt, stream = engine.encode("ab" + ("(" if thinks else ""))[:-1], engine.encode(text)
    thought = ThoughtRequest(True, 10_000, False, 10_000) if thinks else None
    steps = engine.step_by_step(prompt, stream, thought, tool=True)
    assert engine.whole(prompt, stream, thought, tool=True) == steps
    if not thinks and "(" not in text and ")" not in text:
        whole = "".join(step.text for step in steps)
        outputs = [program.output for program in programs(whole)]
        assert outputs == ["ab\n\nab\n"] * len(outputs), "every closed program has its output"
        assert sum(len(step.given) for step in steps) == len(outputs)
        for step in steps:
            assert [step.token_ids[start:end] for start, end in step.given] == [engine.output] * len(step.given)
            assert len([*programs(step.text)]) == len(step.given), "no program is cut by a delimiter"


@pytest.mark.parametrize("kind", PARSERS)
def test_a_prompt_may_end_behind_a_thought(kind: str) -> None:
    engine = SCRIPTED[kind]
    for text, over in {
        "ab(\n\n)\n\n": True,
        "ab)": True,
        "(ab)ab": False,
        "ab(": False,
        "": False,
        "\n": False,
    }.items():
        encoder = ChatEncoder(engine.tokenizer, engine.marks)
        assert encoder.thought_is_over(engine.encode(text)[:-1]) == over, text


@pytest.mark.parametrize("name", MARKS)
def test_answers_are_read_behind_the_marks_of_every_parser(name: str) -> None:
    opening, closing = MARKS[name]
    thought = f"{opening}{'thought' if name == 'gemma4' else ''}\nPerhaps."
    assert open_thought(thought)
    assert without_thoughts(f"{thought}{closing}\n\nSo.").strip() == "So."


@pytest.mark.parametrize("kind", PARSERS)
def test_marks_stay_in_texts_and_texts_become_the_same_tokens(kind: str) -> None:
    engine = SCRIPTED[kind]
    ids = engine.encode("(ab.\n\nab)\n\nab")[:-1]
    text = engine.splitter.text(ids)
    assert text == "(ab.\n\nab)\n\nab".replace("(", engine.marks.opening).replace(")", engine.marks.closing)
    encoder = ChatEncoder(engine.tokenizer, engine.marks)
    assert encoder.encode_text(text, written=True) == ids
    assert "".join(encoder.token_texts(ids)) == text
    if kind != "text":
        assert not set(engine.marks.tokens or ()) & set(encoder.encode_text(text)), (
            "a client's text has no tokens in it"
        )


def test_a_special_mark_in_the_prompt_is_told_where_texts_keep_it() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}[THINK]"
    tokenizer = thinking_vocabulary("special", template)
    question = [{"role": "user", "content": "ab"}]
    assert ChatEncoder(tokenizer).open_thought(question) == ""
    assert ChatEncoder(tokenizer, marks_of("mistral", tokenizer)).open_thought(question) == "[THINK]"


@pytest.mark.parametrize(
    ("kind", "template", "sentence"),
    [
        ("tokens", QWEN3_TEMPLATE, True),
        ("tokens", DEEPSEEK_R1_TEMPLATE, False),
        ("tokens", DEEPSEEK_R1_TEMPLATE.replace("<think>\\n", ""), False),
        ("special", "[THINK][/THINK]", False),
    ],
)
def test_a_parser_is_found_from_the_chat_template(kind: str, template: str, sentence: bool) -> None:
    tokenizer = thinking_vocabulary(kind, template)
    marks = marks_of(None, tokenizer)
    assert marks is not None
    assert tokenizer.convert_ids_to_tokens(list(marks.tokens or ())) == [marks.opening, marks.closing]
    assert bool(marks.sentence) == sentence
    assert marks_of(NO_REASONING, tokenizer) is None


@pytest.mark.parametrize(
    ("kind", "template"),
    [("tokens", ""), ("text", QWEN3_TEMPLATE), ("tokens", "{{ messages }}"), ("special", QWEN3_TEMPLATE)],
)
def test_no_parser_is_found_where_the_template_or_the_vocabulary_lacks_the_marks(kind: str, template: str) -> None:
    assert marks_of(None, thinking_vocabulary(kind, template)) is None


def test_a_tokenizer_without_the_marks_is_refused_with_what_to_do() -> None:
    plain = thinking_vocabulary("text")
    with pytest.raises(ValueError, match=r"no token <think> and no token </think>.*qwen3.*none.*think_text"):
        marks_of("qwen3", plain)
    with pytest.raises(ValueError, match=r"no token \[THINK\] and no token \[/THINK\], by which mistral") as refused:
        marks_of("mistral", plain)
    assert PLAIN_TEXT not in str(refused.value)


class AnyToken(dict[str, int]):
    """A vocabulary that has each token that it is asked for."""

    def __missing__(self, token: str) -> int:
        return self.setdefault(token, len(self) + 1)

    def get(self, token: str, default: object = None) -> int:  # type: ignore[override]
        return self[token]

    def __contains__(self, token: object) -> bool:
        return True


class AnyTokenizer:
    def __init__(self) -> None:
        self.vocab = AnyToken()

    def get_vocab(self) -> AnyToken:
        return self.vocab

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int]:
        return self.vocab[tokens] if isinstance(tokens, str) else [self.vocab[token] for token in tokens]

    def encode(self, text: str, **options: object) -> list[int]:
        return [self.vocab[text]]


def test_the_marks_are_those_of_vllms_parsers() -> None:
    from vllm.reasoning import _REASONING_PARSERS_TO_REGISTER, ReasoningParserManager

    def vllms(name: str) -> Any:
        return ReasoningParserManager.get_reasoning_parser(name)(AnyTokenizer())  # type: ignore[arg-type]

    assert _REASONING_PARSERS_TO_REGISTER.keys() == MARKS.keys() - {PLAIN_TEXT} | REFUSED.keys()
    for name in MARKS.keys() - {PLAIN_TEXT, "deepseek_v3", "poolside_v1"}:  # these choose by the template's arguments
        parser = vllms(name)
        if name == "granite":
            marks = parser.valid_think_starts[1], parser.valid_response_starts[1]
        else:
            marks = parser.reasoning_start_str, parser.reasoning_end_str
        assert marks == MARKS[name], name
    [*of_granite] = vllms("granite").extract_reasoning("{}\nOr 41?\n{}\n\n42".format(*MARKS["granite"]), None)
    assert [part.strip() for part in of_granite] == ["Or 41?", "42"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_parser_without_marks_that_are_tokens_is_refused_with_what_to_do(name: str) -> None:
    from vllm.reasoning import ReasoningParserManager

    with pytest.raises(ValueError, match=rf"'{name}' is not offered: .*With none its thinking") as refused:
        parser_name(name)
    instead = {"hunyuan_a13b": PLAIN_TEXT, "minimax_m2_append_think": "minimax_m2"}.get(name)
    if instead:
        assert instead in str(refused.value)
        assert parser_name(instead) == instead
    elif name != "hf":  # which has other marks for each tokenizer
        parser = ReasoningParserManager.get_reasoning_parser(name)(AnyTokenizer())  # type: ignore[arg-type]
        marks = parser.reasoning_start_str, parser.reasoning_end_str
        several = None not in marks and name in ("kimi_k3", "plamo3")
        assert several or marks == (None, None) or marks[1] == "<|end_message|>", marks


def test_granites_thoughts_are_found_as_text() -> None:
    marks = marks_of("granite", thinking_vocabulary("text"))
    assert marks is not None
    assert marks.tokens is None
    text = f"{marks.opening}\nOr 41?\n{marks.closing}\n\nIt is 42."
    tokenizer = thinking_vocabulary("text")
    splitter = StepSplitter(tokenizer, DELIMITER, frozenset({tokenizer.eos_token_id}), marks)
    ids = ChatEncoder(tokenizer, marks).encode_text(text, written=True)
    [step] = splitter.split((), ids, cut_off=False, thought=splitter.thought_in((), ids, opened=False))
    assert (step.text[: step.thought.characters] + "\n\n" + step.solution, step.solution) == (text, "It is 42.")
