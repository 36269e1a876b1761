"""Implicit rewards without an engine: input, sums, and what is refused. With one: ``test_reward_families``."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.implicit import Implicit, ImplicitSettings
from scripts.embedded.tokenizer import build_tokenizer
from tests.engine.vocabularies import byte_level

QUESTION, STEPS = "What is 1 + 2 + 3?", ("1 + 2 = 3.\n\n", "  3 + 3 = 6.\n", "The result is 6.")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("reference")
    build_tokenizer().save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="module")
def tokenizer(reference: str) -> PreTrainedTokenizerBase:
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(reference)
    return found


def family(tokenizer: PreTrainedTokenizerBase, reference: str, **own: Any) -> Implicit:
    return Implicit(ImplicitSettings(model="any", reference=reference, **own), tokenizer)


def output(rows: torch.Tensor) -> Any:
    return SimpleNamespace(outputs=SimpleNamespace(data=rows))


def test_the_input_is_the_published_chat_and_a_step_reads_only_what_is_new(
    tokenizer: PreTrainedTokenizerBase, reference: str
) -> None:
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "\n\n".join(map(str.strip, STEPS))},
    ]
    published = tokenizer.apply_chat_template(turns, tokenize=False).strip().removesuffix("<|im_end|>") + "\n\n"
    [query] = family(tokenizer, reference).queries(QUESTION, STEPS, 1)
    assert query.token_ids == tokenizer.encode(published, add_special_tokens=False)
    assert query.tags == (len(query.token_ids) - 1,)
    [before] = family(tokenizer, reference).queries(QUESTION, STEPS[:2], 1)
    assert query.known == len(before.token_ids) == query.first + 1
    assert not query.params.skip_reading_prefix_cache
    assert query.uncached().params.skip_reading_prefix_cache


@pytest.mark.parametrize("unscored", [1, 3])
def test_accumulated_rewards_are_those_of_the_sums_from_the_first_step_on(
    tokenizer: PreTrainedTokenizerBase, reference: str, unscored: int
) -> None:
    single, summed = (family(tokenizer, reference, accumulate=accumulate, beta=0.01) for accumulate in (False, True))
    [query] = single.queries(QUESTION, STEPS, len(STEPS))
    torch.manual_seed(1)
    rows = torch.randn(len(query.token_ids), 1)
    steps = [torch.tensor(reward).logit() for reward in single.rewards(output(rows), query)]
    bounds = [query.first, *query.tags]
    assert steps[1] == pytest.approx(0.01 * float(rows[bounds[1] : bounds[2]].sum()), abs=1e-5)

    [all_of_it] = summed.queries(QUESTION, STEPS, unscored)
    assert all_of_it.params.skip_reading_prefix_cache, "every step needs the rows of all steps"
    expected = torch.stack(steps).cumsum(0).sigmoid()[-unscored:]
    assert summed.rewards(output(rows), all_of_it) == pytest.approx(expected.tolist(), abs=1e-5)


def test_rows_that_were_cached_are_missed(tokenizer: PreTrainedTokenizerBase, reference: str) -> None:
    one = family(tokenizer, reference)
    [query] = one.queries(QUESTION, STEPS, 1)
    rows = torch.zeros(len(query.token_ids) - query.first, 1)
    assert one.rewards(output(rows), query) == [0.5]
    with pytest.raises(ValueError, match=f"for {len(query.token_ids)} tokens"):
        one.rewards(output(rows[1:]), query)


def test_a_reference_with_another_vocabulary_is_refused(
    tokenizer: PreTrainedTokenizerBase, reference: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineStartError, match=r"prm\.reference .* has no tokenizer"):
        family(tokenizer, str(tmp_path))
    byte_level(["Step"]).save_pretrained(tmp_path)
    with pytest.raises(EngineStartError, match=r"prm\.reference .* has another vocabulary"):
        family(tokenizer, str(tmp_path))
