"""Inputs of reward models with label tokens, with the vocabularies that they were trained with."""

from pathlib import Path

import mistral_common
import pytest
from sentencepiece import SentencePieceProcessor

from tests.engine.published import LABEL_INPUTS
from tests.engine.test_label_presets import QUESTION, STEPS, assert_reads, preset
from tests.models.conftest import load_tokenizer

PUBLISHED = [
    # The ids in the comments of the published code: label for right, label for wrong, tag.
    ("math_shepherd", "Mistral", (648, 387, 12902)),
    ("er_prm", "Llama-3.1", (489, 482, 116624)),
    ("math_psa", "Qwen2.5", (488, 481, 76325)),
    ("versaprm", "Llama-3.1", (10, 12, 23535)),
    ("versaprm", "Qwen2.5", (10, 12, 22701)),
    ("multi_rm", "Qwen2.5", (10, 12, 22701)),
]


@pytest.mark.parametrize(("name", "vocabulary", "ids"), PUBLISHED)
def test_prompts_equal_the_published_ones(name: str, vocabulary: str, ids: tuple[int, int, int]) -> None:
    tokenizer = load_tokenizer(vocabulary)
    expected = LABEL_INPUTS[name](tokenizer, QUESTION, STEPS)
    assert len(expected.tags) == len(STEPS)
    assert (*expected.labels, expected.token_ids[expected.tags[0]]) == ids
    assert_reads(preset(name, tokenizer), expected)


def test_math_shepherds_prompts_equal_those_of_mistrals_own_sentencepiece_model() -> None:
    """Independent of transformers, whose fast tokenizers split text differently."""
    model = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
    own = SentencePieceProcessor(model_file=str(model))
    queries = preset("math_shepherd", load_tokenizer("Mistral")).queries("How many?", ["a + b\n\n", "9 - 3"], 2)
    texts = ["How many? Step 1: a + b ки", "How many? Step 1: a + b ки\nStep 2: 9 - 3 ки"]
    assert [query.token_ids for query in queries] == [[own.bos_id(), *own.encode(text)] for text in texts]
