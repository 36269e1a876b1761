"""Generated token ids to steps: where a step ends, why, and what it says."""

import math
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from search.tree import Step, StepEnd


class StepCutter:
    """Knows the step delimiter in the terms of one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, delimiter: str, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self.delimiter = delimiter
        self.delimiter_ids = _ids_containing(tokenizer, delimiter) - eos_ids
        """Every id whose text contains the delimiter: stopping at these needs no text while
        generating. Empty where the vocabulary has none; then the engine must look for the string."""

    def step(self, token_ids: Sequence[int], cut_off: bool, logprobs: Sequence[float] | None = None) -> Step:
        """One step from the ids of one generation; ``cut_off`` says that a limit ended it, ``logprobs`` are the
        tokens' log-probabilities (nats)."""
        if token_ids and token_ids[-1] in self._eos_ids:
            end = StepEnd.END_OF_SEQUENCE
        else:
            end = StepEnd.LENGTH if cut_off else StepEnd.DELIMITER
        logprob = None if logprobs is None else math.fsum(logprobs)
        return Step(tuple(token_ids), self.text(token_ids), end, logprob)

    def cut(self, token_ids: Sequence[int], cut_off: bool, logprobs: Sequence[float] | None = None) -> tuple[Step, ...]:
        """The steps of a whole solution, as they would have come one by one. Never empty."""

        def step(start: int, stop: int, cut_off: bool) -> Step:
            return self.step(token_ids[start:stop], cut_off, None if logprobs is None else logprobs[start:stop])

        steps: list[Step] = []
        start = 0
        for stop in range(1, len(token_ids)):
            if self._ends_step(token_ids, start, stop):
                steps.append(step(start, stop, cut_off=False))
                start = stop
        return (*steps, step(start, len(token_ids), cut_off))

    def _ends_step(self, token_ids: Sequence[int], start: int, stop: int) -> bool:
        if self.delimiter_ids:
            return token_ids[stop - 1] in self.delimiter_ids
        return self.delimiter in self.text(token_ids[start:stop])

    def text(self, token_ids: Sequence[int]) -> str:
        """What ids say, special tokens left out."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        assert isinstance(text, str)
        return text


def _ids_containing(tokenizer: PreTrainedTokenizerBase, text: str) -> frozenset[int]:
    ids = range(len(tokenizer))
    pieces = tokenizer.batch_decode([[token] for token in ids], skip_special_tokens=True)
    return frozenset(token for token, piece in zip(ids, pieces, strict=True) if text in piece)
