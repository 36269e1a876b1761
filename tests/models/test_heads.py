"""Inputs of reward models with heads, with the vocabularies that they were trained with, or some like these."""

from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerBase

from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.family import RewardModelSettings
from tests.engine.published import llemma_prm_input, math_minos_input, pqm_input, reason_eval_input, skywork_input
from tests.models.conftest import load_tokenizer

QUESTION = "Janet\u2019s ducks lay 16 eggs per day. She eats 3. How many are left?"
STEPS = [
    "To determine how many are left, we follow these steps:\n\n",
    "1. **Eggs laid per day.**\n   Janet's ducks lay 16 eggs per day.\n\n",
    "2. **Eggs left.**\n   \\[\n   16 - 3 = 13 \\text{ eggs}\n   \\]\n\n",
    "Therefore, the answer is \\(\\boxed{13}\\).",
]


def skywork(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    assert len(tokenizer.encode(".\n")) == 1  # so that the input differs from that of the whole text
    ids, flags = skywork_input(tokenizer, QUESTION, "\n".join(step.strip() for step in STEPS))
    lines = [index for index, flag in enumerate(flags) if flag]
    return ids, [lines[line] for line in (0, 2, 6, 7)]


def published(of: Callable[..., tuple[list[int], list[int]]]) -> Callable[..., tuple[list[int], list[int]]]:
    return lambda tokenizer: of(tokenizer, QUESTION, STEPS)


@pytest.mark.parametrize(
    ("name", "vocabulary", "special", "expected"),
    [
        # Skywork's tokenizer has a BOS token, Qwen's has none.
        ("value_head", "Qwen2.5", {"bos_token": "<|endoftext|>"}, skywork),
        ("pqm", "DeepSeek", {"additional_special_tokens": ["[PRM]"]}, published(pqm_input)),
        ("llemma_prm", "Mistral", {}, published(llemma_prm_input)),
        ("math_minos", "Mistral", {}, published(math_minos_input)),
        ("reason_eval", "Mistral", {"pad_token": "<s>"}, published(reason_eval_input)),
        ("reason_eval", "Mistral", {"pad_token": "<unk>"}, published(reason_eval_input)),
    ],
)
def test_inputs_equal_the_published_ones(
    name: str,
    vocabulary: str,
    special: dict[str, str | list[str]],
    expected: Callable[[PreTrainedTokenizerBase], tuple[list[int], list[int]]],
) -> None:
    tokenizer = load_tokenizer(vocabulary)
    tokenizer.add_special_tokens(special)
    ids, ends = expected(tokenizer)
    settings = parse_prm({"family": name, "model": "any"})
    assert isinstance(settings, RewardModelSettings)
    queries = settings.reader(settings, tokenizer).queries(QUESTION, STEPS, len(STEPS))
    assert [tag for query in queries for tag in query.tags] == ends
    assert all(query.token_ids == ids[: query.tags[-1] + 1] for query in queries)
    if name == "math_minos":
        assert {ids[end] for end in ends} == {839}  # `special_token_id` in the training code
