"""The verdict in a judge's critique: the probability of the good label behind the cue."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def verdict_of(text: str, logprobs: Any, cue: str, labels: Sequence[str]) -> float | None:
    """The reward that a critique gives; None if it came to no verdict.

    Args:
        logprobs: ``logprobs`` of its choice, in OpenAI's shape. With those of the first word behind the last cue, the
            reward is the share of the good label among both. Without them it is 1 or 0, by the label that was written.
        labels: those for right and wrong; case and blanks do not count.
    """
    names = [label.strip().casefold() for label in labels]
    tokens = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if isinstance(tokens, list) and tokens:
        first = next(_behind(tokens, cue), None)
        if first is not None and (share := _share(first, names)) is not None:
            return share
    if cue not in text:
        return None
    written = text.rpartition(cue)[2].lstrip(" \t\r\n*_:\"'`[(").casefold()
    found = [reward for name, reward in zip(names, (1.0, 0.0), strict=True) if _begins_with_word(written, name)]
    return found[0] if len(found) == 1 else None


def _begins_with_word(text: str, word: str) -> bool:
    return text.startswith(word) and not text[len(word) : len(word) + 1].isalnum()


def _behind(tokens: Sequence[Any], cue: str) -> Iterator[Mapping[str, Any]]:
    """The tokens behind the last cue that have a letter or a digit."""
    texts = [token.get("token") if isinstance(token, Mapping) else None for token in tokens]
    if not all(isinstance(text, str) for text in texts):
        return
    at = "".join(map(str, texts)).rfind(cue)
    if at < 0:
        return
    begin = 0
    for token, text in zip(tokens, map(str, texts), strict=True):
        if begin >= at + len(cue) and any(map(str.isalnum, text)):
            yield token
        begin += len(text)


def _share(token: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """The probability of the good label over that of both, among the most likely tokens; None if there is neither."""
    alternatives = token.get("top_logprobs")
    sums = [0.0, 0.0]
    for each in alternatives if isinstance(alternatives, list) else ():
        text, logprob = (each.get("token"), each.get("logprob")) if isinstance(each, Mapping) else (None, None)
        if isinstance(text, str) and isinstance(logprob, int | float) and text.strip().casefold() in names:
            sums[names.index(text.strip().casefold())] += math.exp(min(0.0, logprob))
    return sums[0] / sum(sums) if sum(sums) > 0 else None
