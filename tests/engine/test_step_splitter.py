"""The end of a step, whatever tokens spell the delimiter."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from deployments.engines.step_splitter import StepSplitter, spelled_in_pieces
from scripts.embedded.tokenizer import build_tokenizer
from search.tree import StepEnd
from tests.engine.one_by_one import one_by_one
from tests.engine.vocabularies import EOS, byte_level, sentencepiece, token_id, token_ids

DELIMITER = "\n\n"
TOKENIZER = byte_level(["\n\n", "\n\n\n", ".\n", ".\n\n", "\n ", " \n", "ab"])
PIECES = ["a", "ab", ".", " ", "\n", "\n\n", "\n\n\n", ".\n", ".\n\n", "\n ", " \n", "b"]


def splitter(tokenizer: PreTrainedTokenizerFast = TOKENIZER, delimiter: str = DELIMITER) -> StepSplitter:
    return StepSplitter(tokenizer, delimiter, frozenset({token_id(tokenizer, EOS)}))


@pytest.mark.parametrize(
    ("delimiter", "texts", "in_pieces"),
    [
        ("\n\n", ["a", "\n", "\n\n"], True),
        ("\n\n", ["a", ".\n", "\nb"], True),
        ("\n\n", ["a", ".\n\n", "\n\n"], False),
        ("\n\n", ["a", ".\n", "b"], False),  # a first piece alone does not complete it
        ("\n", ["a", "\n", ".\n"], False),
        ("abc", ["xa", "b", "cx"], True),  # spelled in three tokens
        ("abc", ["xa", "c", "abc"], False),
        ("###", ["#", "###"], True),
        ("; ", [";", "; "], True),  # a token whose leading space may be hidden
        ("。", ["。"], True),  # a token that may be part of the letter
    ],
)
def test_whether_a_vocabulary_can_spell_the_delimiter_in_pieces(
    delimiter: str, texts: Sequence[str], in_pieces: bool
) -> None:
    assert spelled_in_pieces(delimiter, texts) is in_pieces


@pytest.mark.parametrize(
    "spelling",
    [("\n", "\n"), (".\n", "\n"), (".\n\n",), (" \n", "\n "), ("\n\n\n",)],
    ids=["two newlines", "period and newline, newline", "one token", "with spaces around", "three newlines"],
)
def test_a_step_ends_with_the_token_that_completes_the_delimiter(spelling: tuple[str, ...]) -> None:
    first, second = ["ab", *spelling], ["b", "\n", "a", *spelling]
    steps = splitter().split((), token_ids(TOKENIZER, *first, *second, "ab", EOS), cut_off=False)
    assert [step.text for step in steps] == ["".join(first), "".join(second), "ab"]
    assert [step.end for step in steps] == [StepEnd.DELIMITER, StepEnd.DELIMITER, StepEnd.END_OF_SEQUENCE]


def test_whitespace_before_a_step_belongs_to_it() -> None:
    texts = ["\n", "\n", "\n\n", " ", "\n\n", "ab", ".\n", "\n", "\n\n", "a"]
    steps = splitter().split((), token_ids(TOKENIZER, *texts), cut_off=True)
    assert [step.text for step in steps] == ["\n\n\n\n \n\nab.\n\n", "\n\na"]
    assert [step.end for step in steps] == [StepEnd.DELIMITER, StepEnd.LENGTH]


def test_a_delimiter_of_letters_alone_is_no_step() -> None:
    letters = splitter(delimiter="; ")
    steps = letters.split((), TOKENIZER.encode("; a; ; b; "), cut_off=True)
    assert [step.text for step in steps] == ["; a; ", "; b; "]


def test_a_letter_spelled_in_bytes_does_not_end_a_step_early() -> None:
    text = "aé\né\n\né"
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text.encode())
    steps = splitter().split(TOKENIZER.encode("é")[:1], ids, cut_off=True)
    assert [step.text for step in steps] == ["aé\né\n\n", "é"]


def test_stop_strings_are_used_only_if_token_ids_may_miss_a_delimiter() -> None:
    both = splitter().stop
    assert both.strings == (DELIMITER,)
    assert both.token_ids == tuple(sorted(token_ids(TOKENIZER, "\n\n", "\n\n\n", ".\n\n")))
    alone = splitter(delimiter="\n").stop
    assert alone.strings == ()
    assert len(alone.token_ids) == 1 + sum("\n" in text for text in ["\n\n", "\n\n\n", ".\n", ".\n\n", "\n ", " \n"])


def test_logprobs_are_summed_by_step() -> None:
    ids = token_ids(TOKENIZER, "ab", "\n", "\n", "a")
    first, last = splitter().split((), ids, cut_off=True, logprobs=[-1.0, -0.5, -0.25, -2.0])
    assert (first.logprob, last.logprob) == (-1.75, -2.0)
    assert (first.token_logprobs, last.token_logprobs) == ((-1.0, -0.5, -0.25), (-2.0,))


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=24))
@example(["\n\n", "\n", "\n", "\n", "a", "\n", "\n"])
def test_a_solution_splits_into_the_steps_of_a_step_by_step_run(pieces: list[str]) -> None:
    each = splitter()
    ids = token_ids(TOKENIZER, *pieces)
    steps = each.split(token_ids(TOKENIZER, "a", "\n"), ids, cut_off=True)
    assert [step.token_ids for step in steps] == one_by_one(each, TOKENIZER, ids)
    assert all(step.text.strip() for step in steps[:-1])
    assert not any(DELIMITER in step.text.strip() for step in steps)


class WholePrefix(StepSplitter):
    """Has each stop found by a detokenizer that has read everything before, as vLLM's in a request for one step."""

    def _read_behind(self, prompt: Sequence[int], token_ids: Sequence[int], before: int, stop: int) -> Sequence[int]:
        return (*prompt, *token_ids[:stop])


SENTENCEPIECE = sentencepiece()
BYTES = [token for text, token in SENTENCEPIECE.get_vocab().items() if text in ("<0x0A>", "<0xC3>", "<0xA9>", "<0xE2>")]


@pytest.mark.parametrize(
    ("tokenizer", "ids"),
    [
        (TOKENIZER, [*token_ids(TOKENIZER, *PIECES, EOS), *TOKENIZER.encode("é€")]),
        (SENTENCEPIECE, [*BYTES, *SENTENCEPIECE.encode("x x - +"), *SENTENCEPIECE.all_special_ids]),
    ],
    ids=["byte-level", "sentencepiece"],
)
@pytest.mark.parametrize("delimiter", ["\n\n", "\n", " x", "é"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_step_behind_few_tokens_ends_where_it_ends_behind_all_of_them(
    tokenizer: PreTrainedTokenizerFast, ids: list[int], delimiter: str, data: st.DataObject
) -> None:
    written = data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=60))
    prompt = data.draw(st.lists(st.sampled_from(ids), max_size=4))
    eos = frozenset({tokenizer.eos_token_id})
    expected = WholePrefix(tokenizer, delimiter, eos).split(prompt, written, cut_off=True)
    assert StepSplitter(tokenizer, delimiter, eos).split(prompt, written, cut_off=True) == expected


@pytest.mark.parametrize(
    "step", [("ab", "\n", "\n"), ("ab", ".\n\n"), ("\n\n",), ("\n",), ("b", " ", "\n\n\n")], ids=repr
)
def test_twice_as_many_steps_take_twice_as_many_tokens_to_be_read(
    step: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    each, read = splitter(), list[int]()
    prime, decode = each._detokenizer, each.text

    def primed(prompt: Sequence[int], strings: Sequence[str]) -> object:
        read.append(len(prompt))
        return prime(prompt, strings)

    def decoded(ids: Sequence[int]) -> str:
        read.append(len(ids))
        return decode(ids)

    monkeypatch.setattr(each, "_detokenizer", primed)
    monkeypatch.setattr(each, "text", decoded)

    def read_of(steps: int) -> int:
        read.clear()
        each.split([0] * 100, token_ids(TOKENIZER, *step * steps), cut_off=True)
        return sum(read)

    assert read_of(400) - read_of(200) <= 1.1 * (read_of(200) - read_of(0) + 100)


def test_the_embedded_vocabulary_can_spell_the_delimiter_in_pieces() -> None:
    tokenizer = build_tokenizer(200)
    eos = tokenizer.eos_token_id
    each = StepSplitter(tokenizer, DELIMITER, frozenset({eos}))
    assert each.stop.strings == (DELIMITER,)
    [newline] = tokenizer.encode("\n")
    texts = ["1 + 1 = 2", "2 + 2 = 4", "The answer is 4"]
    ids = [*tokenizer.encode(texts[0]), newline, newline, *tokenizer.encode(DELIMITER.join(texts[1:])), eos]
    steps = each.split((), ids, cut_off=False)
    assert [step.text for step in steps] == [texts[0] + DELIMITER, texts[1] + DELIMITER, texts[2]]
    assert [token for step in steps for token in step.token_ids] == ids
