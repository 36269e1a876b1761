"""A Qwen3 with its published vocabulary and chat template, small enough for a test: each token depends on the last one
only, with chances by which it thinks, now and then without end, and solves in steps."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.models.conftest import load_tokenizer

WIDTH = 64
NEVER = -30.0
"""The logit of all other tokens."""
CHANCES: Mapping[str, Mapping[str, float]] = {
    "\n": {"<think>": 0.7, "It": 0.3},
    # The thought has words of its own, empty lines, and boxes.
    "<think>": {"Six": 1.0},
    "Six": {"vens": 0.55, "?\n\n": 0.2, "\\": 0.1, "</think>": 0.15},
    "vens": {"Six": 1.0},
    "?\n\n": {"Six": 1.0},
    "\\": {"box": 1.0},
    "box": {"ed": 1.0},
    "ed": {"{x": 1.0},
    "{x": {"}\n\n": 1.0},
    "}\n\n": {"Six": 0.8, "</think>": 0.2},
    "</think>": {"\n\n": 1.0},
    # The solution.
    "\n\n": {"It": 0.98, '{"': 0.02},
    "It": {" is": 0.6, ".\n\n": 0.35, "<|im_end|>": 0.05},
    ".\n\n": {"It": 1.0},
    " is": {" \\": 0.4, "It": 0.6},
    " \\": {"boxed": 1.0},
    "boxed": {"{": 1.0},
    "{": {"4": 0.6, "7": 0.4},
    "4": {"1": 0.5, "2": 0.5},
    **{digit: {"}.": 1.0} for digit in "127"},
    "}.": {"<|im_end|>": 0.7, "It": 0.3},
    # JSON, for a schema.
    '{"': {"a": 1.0},
    "a": {'":': 1.0},
    '":': {" true": 0.5, " false": 0.5},
    **{value: {"}": 1.0} for value in (" true", " false")},
    "}": {"<|im_end|>": 1.0},
}


def save_small_thinker(directory: Path) -> None:
    """Saves the model with one layer that adds nothing. Each token of the chances is a direction of its own; the head
    has their logits there, and `NEVER` for all others."""
    tokenizer = load_tokenizer("Qwen3")
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype=torch.float32,
    )
    model = Qwen3ForCausalLM(config)
    texts = dict.fromkeys([*CHANCES, *(text for following in CHANCES.values() for text in following)])
    [*ids] = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    assert all(len(each) == 1 for each in ids)
    directions = {text: (number, token) for number, (text, [token]) in enumerate(zip(texts, ids, strict=True))}
    logits = torch.full((len(tokenizer), WIDTH), NEVER)
    for last, following in CHANCES.items():
        for text, chance in following.items():
            logits[directions[text][1], directions[last][0]] = torch.tensor(chance).log()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1.0)
        for number, token in directions.values():
            model.model.embed_tokens.weight[token, number] = 1.0
        model.lm_head.weight.copy_(logits / WIDTH**0.5)  # the norm scales a direction to this length
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
