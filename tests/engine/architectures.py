"""Public architectures at a size that starts quickly, with random weights, and the KV cache of their engines."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kvstore.memory.geometry import KVGeometry

COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "dtype": "float32",
}
LATENT_DTYPE, LATENT_BYTES = ("bfloat16", 2) if torch.cpu._is_amx_tile_supported() else ("float32", 4)
"""Where the processor has AMX, vLLM's backend for latent vectors does not support float32."""
LATENT = {"kv_lora_rank": 512, "q_lora_rank": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
EXPERTS = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama", "num_key_value_heads": 2},
    "Qwen3ForCausalLM": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 64},
    "FalconForCausalLM": {"model_type": "falcon", "multi_query": True, "new_decoder_architecture": False},
    "OPTForCausalLM": {"model_type": "opt", "ffn_dim": 128, "word_embed_proj_dim": 128},
    "MistralForCausalLM": {"model_type": "mistral", "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 64},
    "MixtralForCausalLM": {
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "Gemma3ForCausalLM": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "sliding_window": 64,
        "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
    },
    "GptOssForCausalLM": {
        "model_type": "gpt_oss",
        "num_key_value_heads": 2,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": ALTERNATING,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "DeepseekV2ForCausalLM": {
        "model_type": "deepseek_v2",
        "num_key_value_heads": 4,
        "first_k_dense_replace": 4,
        "dtype": LATENT_DTYPE,
        **LATENT,
        **EXPERTS,
    },
}


def write(architecture: str, directory: Path) -> str:
    """A model directory without weights."""
    directory.mkdir(parents=True, exist_ok=True)
    config = COMMON | {"architectures": [architecture]} | ARCHITECTURES[architecture]
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def arguments(model: str) -> dict[str, Any]:
    """Engine arguments for vLLM."""
    return {
        "model": model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "kv_cache_memory_bytes": 64 << 20,
        "max_model_len": 512,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 4,
        "block_size": 32,
        "dtype": json.loads(Path(model, "config.json").read_text())["dtype"],
        "disable_log_stats": True,
        "worker_extension_cls": "deployments.engines.worker_extension.WorkerExtension",
    }


class Sizes(NamedTuple):
    """The KV cache of one engine."""

    expected: KVGeometry
    found: KVGeometry
    blocks: int


def started(directory: Path, names: Sequence[str]) -> dict[str, Sizes]:
    """Starts vLLM with each architecture, one after the other, in this process: one that ends afterwards."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    from vllm import LLM, AsyncEngineArgs
    from vllm.model_executor.models import registry

    from kvstore.memory.engine_geometry import expected_geometry

    registry._run_in_subprocess = lambda function: function()  # it looks at models that are imported here anyway
    sizes = {}
    for name in names:
        args = arguments(write(name, directory / name))
        expected = expected_geometry(AsyncEngineArgs(**args).create_engine_config())
        llm = LLM(**args)
        [found] = llm.collective_rpc("kv_geometry")
        blocks = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
        sizes[name] = Sizes(expected, KVGeometry.of(*found), blocks)
        llm.llm_engine.engine_core.shutdown()
    return sizes
