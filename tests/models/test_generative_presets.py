"""Prompts of generative verifiers with Qwen2.5's tokenizer, from which all published ones are made, and its own chat
template where the published model has it."""

import pytest

from tests.engine.published import VERIFIER_INPUTS
from tests.engine.test_generative_presets import CHATS, R1_CHAT, assert_reads_as_published
from tests.models.conftest import load_tokenizer


@pytest.mark.parametrize("name", VERIFIER_INPUTS)
def test_prompts_and_verdicts_are_the_published_ones(name: str) -> None:
    tokenizer = load_tokenizer("Qwen2.5")
    if CHATS[name] == R1_CHAT:
        tokenizer.chat_template = R1_CHAT
    assert_reads_as_published(name, tokenizer)
