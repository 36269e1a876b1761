"""A generative verifier with tiny random weights: its critiques mean nothing, and most end where they are cut."""

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from deployments.engines.rewards.generative import VerifierTemplate
from tests.engine.reward_models import SHAPE
from tests.engine.vocabularies import LLAMA_3, byte_level

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT = 4096
TEMPLATE = VerifierTemplate(user="{question}\n{steps}", opening="Well:", cue="?", verdict="\nRight?")


def save_verifier(directory: Path) -> tuple[PreTrainedTokenizerBase, Qwen2ForCausalLM]:
    """Writes model and tokenizer to ``directory``, and returns them."""
    tokenizer = byte_level([" Yes", " No", "Step", "\n\n"], LLAMA_3)
    tokenizer.chat_template = CHATML
    tokenizer.eos_token = tokenizer.bos_token = None  # a random model would end its critiques soon
    torch.manual_seed(5)
    shape = SHAPE | {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT}
    model = Qwen2ForCausalLM(Qwen2Config(**shape, bos_token_id=None, eos_token_id=None)).eval()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return tokenizer, model
