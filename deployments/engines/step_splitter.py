"""Splits generated token ids into steps: where a step ends, why, and its text.

A step ends with the token that completes the step delimiter, unless the step so far is only whitespace and delimiters:
models often begin with newlines, which belong to the step that follows them.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from search.tree import Step, StepEnd

WINDOW = 8
"""Fewest tokens behind which a detokenizer continues: more than a character has bytes."""
_INCOMPLETE = "\ufffd"
"""What stands for bytes that are no character."""


class StepStop(NamedTuple):
    """The engine's stop conditions for the end of a step. It stops at the first that is met."""

    token_ids: tuple[int, ...]
    """Tokens that contain the delimiter: the engine stops at once. On a GPU it drops a token that it has begun."""
    strings: tuple[str, ...]
    """The delimiter, where several tokens may spell it: only the text shows it, which costs detokenization."""


class StepSplitter:
    """Finds the step delimiter in the tokens of one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, delimiter: str, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self.delimiter = delimiter
        ids = range(len(tokenizer))
        texts = tokenizer.batch_decode([[token] for token in ids], skip_special_tokens=True)
        containing = {token for token, text in zip(ids, texts, strict=True) if delimiter in text}
        self._delimiter_ids = frozenset(containing - eos_ids)
        self._blank_ids = frozenset(token for token, text in zip(ids, texts, strict=True) if self.is_blank(text))
        self.stop = StepStop(
            tuple(sorted(self._delimiter_ids)), (delimiter,) if spelled_in_pieces(delimiter, texts) else ()
        )

    def step(self, token_ids: Sequence[int], cut_off: bool, logprobs: Sequence[float] | None = None) -> Step:
        """Makes one step of generated ids.

        ``cut_off``: whether a limit ended the generation. ``logprobs``: the tokens' log-probabilities, nats.
        """
        if token_ids and token_ids[-1] in self._eos_ids:
            end = StepEnd.END_OF_SEQUENCE
        else:
            end = StepEnd.LENGTH if cut_off else StepEnd.DELIMITER
        logprob = None if logprobs is None else math.fsum(logprobs)
        each = None if logprobs is None else tuple(logprobs)
        return Step(tuple(token_ids), self.text(token_ids), end, logprob, each)

    def split(
        self,
        prompt: Sequence[int],
        token_ids: Sequence[int],
        cut_off: bool,
        logprobs: Sequence[float] | None = None,
    ) -> tuple[Step, ...]:
        """Splits a whole solution to ``prompt`` into the steps that step-by-step generation would give. Never empty."""
        bounds = [0]
        looked_at = 0
        for stop in self._stops(prompt, token_ids):
            # Blank tokens behind a blank text need not be decoded: a model may write nothing but newlines.
            if not self._blank_ids.issuperset(token_ids[looked_at:stop]) and not self.is_blank(
                self.text(token_ids[bounds[-1] : stop])
            ):
                bounds.append(stop)
            looked_at = stop
        bounds.append(len(token_ids))
        last = len(bounds) - 2
        return tuple(
            self.step(token_ids[start:stop], cut_off and index == last, logprobs and logprobs[start:stop])
            for index, (start, stop) in enumerate(itertools.pairwise(bounds))
        )

    def is_blank(self, text: str) -> bool:
        """Whether a text is only whitespace and delimiters, and so no step yet."""
        return not text.replace(self.delimiter, "").strip()

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def _stops(self, prompt: Sequence[int], token_ids: Sequence[int]) -> Iterator[int]:
        """Number of tokens at each stop of step-by-step generation, without the stop at the end."""
        detokenizer = self._detokenizer(prompt)
        before = 0
        for stop, token in enumerate(token_ids[:-1], 1):
            at_string = detokenizer is not None and detokenizer.update([token], stop_terminated=False) is not None
            if at_string or token in self._delimiter_ids:
                yield stop
                if detokenizer is not None:
                    detokenizer = self._detokenizer(self._read_behind(prompt, token_ids, before, stop))
                before = stop

    def _read_behind(self, prompt: Sequence[int], token_ids: Sequence[int], before: int, stop: int) -> Sequence[int]:
        """The ids of a prefix by which a detokenizer decodes what follows ``stop``: those since the stop before it, or
        a few more. It reads all that it is given, so all of the prefix at each stop would be quadratic.

        All of it is given where the text of these might depend on what stands before them: they hold no text of their
        own, or begin within a character.
        """
        if (start := min(before, stop - WINDOW)) > 0:
            text = self.text(recent := token_ids[start:stop])
            if text and _INCOMPLETE not in text:
                return recent
        return (*prompt, *token_ids[:stop])

    def _detokenizer(self, prompt: Sequence[int]) -> IncrementalDetokenizer | None:
        """vLLM's own search for stop strings, so that both always agree; None where there are no stop strings.

        No other detokenizer decodes characters that span several tokens exactly like it.
        """
        if not self.stop.strings:
            return None
        request = EngineCoreRequest(
            request_id="",
            prompt_token_ids=list(prompt),
            mm_features=None,
            sampling_params=SamplingParams(stop=list(self.stop.strings), include_stop_str_in_output=True),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        return IncrementalDetokenizer.from_new_request(self._tokenizer, request)


def spelled_in_pieces(delimiter: str, texts: Iterable[str]) -> bool:
    """Whether several tokens with these texts can spell the delimiter, none of them containing it.

    True in doubt: tokens of characters beyond ASCII may be bytes, which have no text of their own, and some tokenizers
    drop the leading space of a token that is decoded alone.
    """
    if not delimiter.isascii() or " " in delimiter:
        return True
    pieces = {text for text in texts if delimiter not in text}
    size = len(delimiter)
    spelled = {end for end in range(1, size) if any(text.endswith(delimiter[:end]) for text in pieces)}
    for end in range(1, size):
        if end in spelled:
            spelled |= {further for further in range(end + 1, size) if delimiter[end:further] in pieces}
    return any(text.startswith(delimiter[end:]) for end in spelled for text in pieces)
