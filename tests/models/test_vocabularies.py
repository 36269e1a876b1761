"""Steps with the vocabularies of published models."""

import random

import pytest
from transformers import PreTrainedTokenizerBase

from deployments.engines.step_splitter import StepSplitter
from search.tree import StepEnd
from tests.engine.one_by_one import one_by_one
from tests.models.conftest import load_tokenizer

DELIMITER = "\n\n"
TEXTS = [
    "To find the product, count 7 groups of 8.\n\n",
    "Add them up:\n- 8 + 8 = 16\n- 16 + 16 = 32\n\n",
    "In symbols, $7 \\times 8 = 56$\n\n",
    "The answer is \\(56\\). naïve café, 答案是 56。",
]
VOCABULARIES = {"Qwen2.5": True, "Llama-3.1": True, "DeepSeek": True, "SmolLM2-135M-Instruct": False}
"""Whether the tokenizer writes the delimiter between two steps as one token, or merges it with the text before."""


@pytest.fixture(scope="module", params=VOCABULARIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(name: str) -> PreTrainedTokenizerBase:
    return load_tokenizer(name)


@pytest.fixture(scope="module")
def splitter(tokenizer: PreTrainedTokenizerBase) -> StepSplitter:
    return StepSplitter(tokenizer, DELIMITER, frozenset({tokenizer.eos_token_id}))


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_every_vocabulary_can_spell_the_delimiter_in_pieces(
    name: str, tokenizer: PreTrainedTokenizerBase, splitter: StepSplitter
) -> None:
    print(f"{name}: {len(splitter.stop.token_ids)} tokens of {len(tokenizer)} contain the delimiter")
    assert splitter.stop.strings == (DELIMITER,)
    assert splitter.stop.token_ids
    assert all(DELIMITER in tokenizer.decode([token]) for token in splitter.stop.token_ids)
    written_as_one = any(token in splitter.stop.token_ids for token in encoded(tokenizer, TEXTS[0] + TEXTS[1].rstrip()))
    assert written_as_one is VOCABULARIES[name]


def test_a_solution_splits_into_its_steps_as_the_tokenizer_encodes_it(
    tokenizer: PreTrainedTokenizerBase, splitter: StepSplitter
) -> None:
    ids = encoded(tokenizer, "".join(TEXTS))
    steps = splitter.split((), [*ids, tokenizer.eos_token_id], cut_off=False)
    assert [step.text for step in steps] == TEXTS
    assert [step.end for step in steps] == [StepEnd.DELIMITER] * 3 + [StepEnd.END_OF_SEQUENCE]


def test_a_solution_splits_into_its_steps_newline_by_newline(
    tokenizer: PreTrainedTokenizerBase, splitter: StepSplitter
) -> None:
    """``.
    `` and then ``
    ``, which a model with any of these vocabularies may write."""
    lines = "".join(TEXTS).splitlines(keepends=True)
    ids = [token for line in lines for token in encoded(tokenizer, line)]
    assert not set(splitter.stop.token_ids) & set(ids)
    assert [step.text for step in splitter.split((), ids, cut_off=True)] == TEXTS


def test_random_tokens_split_into_the_steps_of_a_step_by_step_run(
    tokenizer: PreTrainedTokenizerBase, splitter: StepSplitter
) -> None:
    rng = random.Random(8)
    ids = range(len(tokenizer))
    texts = tokenizer.batch_decode([[token] for token in ids])
    newlines = [token for token in ids if "\n" in texts[token] and "\ufffd" not in texts[token]]
    others = [token for token in rng.sample(ids, 2000) if "\n" not in texts[token] and "\ufffd" not in texts[token]]
    prompt = encoded(tokenizer, "What is 7 times 8?\n")
    for _ in range(100):
        written = [rng.choice(newlines if rng.random() < 0.4 else others) for _ in range(rng.randint(1, 40))]
        steps = splitter.split(prompt, written, cut_off=True)
        assert [step.token_ids for step in steps] == one_by_one(splitter, tokenizer, written)
