"""Token-level beam search on a language small enough to enumerate every continuation."""

import asyncio
import itertools
import math
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.token_beam import BeamSequence, TokenBeamSettings, token_beam_search

EOS = 0
VOCABULARY = range(4)


class Language:
    """Log-probabilities of the next token are a hash of the prefix."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.in_flight = self.most_in_flight = self.asked = 0

    def following(self, prefix: Sequence[int]) -> dict[int, float]:
        rng = random.Random(f"{self._seed}:{tuple(prefix)}")
        weights = [rng.random() + 0.01 for _ in VOCABULARY]
        return {token: math.log(weight / sum(weights)) for token, weight in zip(VOCABULARY, weights, strict=True)}

    async def next_tokens(self, prefixes: Sequence[Sequence[int]], count: int) -> list[Mapping[int, float]]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.asked += len(prefixes)
        for _ in range(random.Random(self.asked).randint(0, 3)):
            await asyncio.sleep(0)
        self.in_flight -= 1
        rows = [sorted(self.following(prefix).items(), key=lambda pair: -pair[1])[:count] for prefix in prefixes]
        return [dict(row) for row in rows]


def every_continuation(language: Language, prompt: tuple[int, ...], most: int, penalty: float) -> list[BeamSequence]:
    found = []
    for length in range(1, most + 1):
        for tokens in itertools.product(VOCABULARY, repeat=length):
            ends = tokens[-1] == EOS
            if EOS in tokens[:-1] or (length < most and not ends):
                continue
            logprob = sum(language.following((*prompt, *tokens[:index]))[token] for index, token in enumerate(tokens))
            score = logprob / (len(prompt) + length - ends) ** penalty
            found.append(BeamSequence(tokens, logprob, score, ends))
    return sorted(found, key=lambda sequence: -sequence.score)


def run(language: Language, prompts: list[tuple[int, ...]], **wanted: object) -> list[list[BeamSequence]]:
    return asyncio.run(token_beam_search(language, prompts, TokenBeamSettings.model_validate(wanted), EOS))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), most=st.integers(1, 4), penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]))
def test_a_wide_enough_beam_finds_the_best_of_all_continuations(seed: int, most: int, penalty: float) -> None:
    language = Language(seed)
    [found] = run(language, [(1, 2)], width=64, max_tokens=most, length_penalty=penalty)
    best = every_continuation(language, (1, 2), most, penalty)[:64]
    assert [sequence.token_ids for sequence in found] == [sequence.token_ids for sequence in best]
    assert [sequence.score for sequence in found] == pytest.approx([sequence.score for sequence in best])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), width=st.integers(1, 4), penalty=st.sampled_from([0.0, 1.0, 2.0]))
def test_stopping_early_does_not_change_the_result(seed: int, width: int, penalty: float) -> None:
    """Compared with the same loop without early stopping."""
    language = Language(seed)
    [found] = run(language, [(3,)], width=width, max_tokens=30, length_penalty=penalty)
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(30):
        grown = []
        for tokens, logprob in beams:
            row = sorted(language.following((3, *tokens)).items(), key=lambda pair: -pair[1])[: 2 * width]
            for token, more in row:
                longer = (*tokens, token), logprob + more
                if token == EOS:
                    ended.append((longer[1] / len(longer[0]) ** penalty, longer[0]))
                else:
                    grown.append(longer)
        beams = sorted(grown, key=lambda beam: -beam[1])[:width]
    ended += [(logprob / (1 + len(tokens)) ** penalty, tokens) for tokens, logprob in beams]
    best = sorted(ended, key=lambda pair: -pair[0])[:width]
    assert [sequence.token_ids for sequence in found] == [tokens for _, tokens in best]


def test_early_stopping_saves_calls() -> None:
    language = Language(1)
    run(language, [(3,)], width=2, max_tokens=200, length_penalty=0.0)
    assert language.asked < 50


@pytest.mark.parametrize("limit", [-5, 0, 1, 3, 1000, None])
def test_the_limit_of_prompts_in_flight_does_not_change_results(limit: int | None) -> None:
    prompts = [(1, number) for number in range(7)]
    language = Language(2)
    found = run(language, prompts, width=2, max_tokens=5, concurrency_limit=limit)
    assert found == run(Language(2), prompts, width=2, max_tokens=5)
    assert language.most_in_flight <= (7 if limit is None else max(1, limit))


def test_ignore_eos_continues_past_the_end() -> None:
    [found] = run(Language(3), [(1,)], width=3, max_tokens=6, ignore_eos=True)
    assert all(len(sequence.token_ids) == 6 and not sequence.ended for sequence in found)


def test_without_prompts_there_are_no_sequences() -> None:
    assert run(Language(4), [], width=2, max_tokens=3) == []


def test_a_failure_of_one_prompt_is_raised_unchanged() -> None:
    class Broken(Language):
        async def next_tokens(self, prefixes: Sequence[Sequence[int]], count: int) -> list[Mapping[int, float]]:
            if prefixes[0][1] == 2:
                raise KeyError("engine")
            return await super().next_tokens(prefixes, count)

    with pytest.raises(KeyError, match="engine"):
        run(Broken(5), [(1, number) for number in range(4)], width=2, max_tokens=5)
