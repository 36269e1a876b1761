"""A model in which each token depends only on the last one, with probabilities that a test chooses."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.engine.vocabularies import token_id

Chances = Mapping[str, Mapping[str, float]]
"""For each token's text, the probabilities of the next tokens."""


def save_markov_model(
    directory: Path, tokenizer: PreTrainedTokenizerFast, chances: Chances, context: int = 512
) -> None:
    """A Qwen2 with one layer that adds nothing: each token is a direction of its own, and the head has its logits."""
    size = len(tokenizer)
    width = -(-size // 64) * 64
    config = Qwen2Config(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=width // 32,
        num_key_value_heads=1,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    logits = torch.full((size, size), -30.0)
    for last, following in chances.items():
        for text, chance in following.items():
            logits[token_id(tokenizer, text), token_id(tokenizer, last)] = torch.tensor(chance).log()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1.0)
        model.model.embed_tokens.weight[:, :size] = torch.eye(size)
        model.lm_head.weight[:, :size] = logits / width**0.5  # the norm scales a direction to this length
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
