"""A Llama or Qwen2 model from a quantized GGUF file to a directory that vLLM loads: bfloat16 safetensors and tokenizer.

    python scripts/gguf_to_safetensors.py MODEL.gguf DIRECTORY

vLLM 0.32 reads no GGUF, and transformers reads it but refuses to save what it read. Needs the package gguf, which the
locks do not have: ``scripts/models`` installs it beside.
"""

import re
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

LAYER_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ARCHITECTURES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
OTHER_PARTS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def read_config(reader: GGUFReader, architecture: str) -> Any:
    def value(name: str) -> Any:
        return reader.get_field(name.replace("llama.", f"{architecture}.")).contents()

    return ARCHITECTURES[architecture][0](
        hidden_size=value("llama.embedding_length"),
        intermediate_size=value("llama.feed_forward_length"),
        num_hidden_layers=value("llama.block_count"),
        num_attention_heads=value("llama.attention.head_count"),
        num_key_value_heads=value("llama.attention.head_count_kv"),
        max_position_embeddings=value("llama.context_length"),
        rms_norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        vocab_size=len(value("tokenizer.ggml.tokens")),
        bos_token_id=value("tokenizer.ggml.bos_token_id"),
        eos_token_id=value("tokenizer.ggml.eos_token_id"),
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        dtype=torch.bfloat16,
    )


def huggingface_name(name: str) -> str:
    if layer := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        return f"model.layers.{layer[1]}.{LAYER_PARTS[layer[2]]}.{layer[3]}"
    return OTHER_PARTS[name]


def unpermuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp interleaves the two halves of each head's rotation in the rows of q and k."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_weights(reader: GGUFReader, config: LlamaConfig | Qwen2Config) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if isinstance(config, LlamaConfig) and ".attn_q." in tensor.name:
            weight = unpermuted(weight, config.num_attention_heads)
        elif isinstance(config, LlamaConfig) and ".attn_k." in tensor.name:
            weight = unpermuted(weight, config.num_key_value_heads)
        weights[huggingface_name(tensor.name)] = weight.to(torch.bfloat16)
    return weights


def main(source: Path, target: Path) -> None:
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    config = read_config(reader, architecture)
    weights = read_weights(reader, config)
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = ARCHITECTURES[architecture][1](config).to(torch.bfloat16)
    model.load_state_dict(weights)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if architecture == "qwen2":  # A turn ends with either; the file names one.
        ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
        model.generation_config = GenerationConfig(eos_token_id=ends)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
