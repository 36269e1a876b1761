"""Facts of published models: contexts from their ``config.json``, shapes from their papers and configurations."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deployments.engines import settings
from deployments.startup import memory_plan
from kvstore.memory.geometry import KVGeometry, KVGroup

GIB = 1 << 30
BLOCK = 16


@dataclass(frozen=True)
class Model:
    context: int
    billions: float
    """Weights."""
    layers: int
    kv_heads: int
    head: int
    heads: int
    kind: str
    architecture: str

    @property
    def config(self) -> dict[str, Any]:
        """What its ``config.json`` says of its shape and context."""
        return {
            "architectures": [self.architecture],
            "model_type": self.kind,
            "torch_dtype": "bfloat16",
            "hidden_size": self.head * self.heads,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.context,
        } | ({"head_dim": self.head} if self.kind != "qwen2" else {"sliding_window": 4096, "use_sliding_window": False})

    @property
    def stored(self) -> Counter[str]:
        """Number of weights in its files, by dtype."""
        return Counter(BF16=int(1e9 * self.billions))

    def weight_bytes(self, devices: int) -> int:
        """On each of the engine's devices, in 16 bits."""
        return int(2e9 * self.billions / devices)

    def geometry(self, devices: int) -> KVGeometry:
        page = BLOCK * 2 * 2 * self.head * self.kv_heads // devices
        return KVGeometry((KVGroup(self.layers, page, BLOCK),), self.layers * page)


MODELS = {
    "Qwen/Qwen2.5-1.5B-Instruct": Model(32_768, 1.54, 28, 2, 128, 12, "qwen2", "Qwen2ForCausalLM"),
    "Qwen/Qwen2.5-Math-PRM-7B": Model(4096, 7.08, 28, 4, 128, 28, "qwen2", "Qwen2ForProcessRewardModel"),
    "meta-llama/Llama-3.2-1B-Instruct": Model(131_072, 1.24, 16, 8, 64, 32, "llama", "LlamaForCausalLM"),
    "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data": Model(131_072, 8.03, 32, 8, 128, 32, "llama", "LlamaForCausalLM"),
    "Qwen/Qwen3-8B": Model(40_960, 8.19, 36, 8, 128, 32, "qwen3", "Qwen3ForCausalLM"),
    "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B": Model(4096, 7.08, 28, 4, 128, 28, "qwen2", "Qwen2ForRewardModel"),
    "meta-llama/Llama-3.3-70B-Instruct": Model(131_072, 70.6, 80, 8, 128, 64, "llama", "LlamaForCausalLM"),
}
DEVICE_GIB = {
    "qwen2.5-1.5b_math-prm-7b": 22.5,
    "llama3.2-1b_rlhflow-8b": 22.5,
    "qwen3-8b_skywork-7b": 22.5,
    "llama3.3-70b_rlhflow-8b": 79.0,
    "one-24gb-gpu": 22.5,
}
"""Memory of the GPUs that a configuration is for, as its comment says."""


def write_hub_cache(folder: Path) -> None:
    """The hub's cache on a machine that has the models' configurations, and no weights."""
    for name, model in MODELS.items():
        of_model = folder / f"models--{name.replace('/', '--')}"
        (of_model / "snapshots" / "abc").mkdir(parents=True)
        (of_model / "refs").mkdir()
        (of_model / "refs" / "main").write_text("abc")
        (of_model / "snapshots" / "abc" / "config.json").write_text(json.dumps(model.config))


def as_on_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans as with vLLM's build for GPUs, with the hub's cache in ``folder`` and the models' sizes at the hub."""
    write_hub_cache(folder)
    stored = memory_plan.stored_numbers
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    for module in (memory_plan, settings):
        monkeypatch.setattr(module, "runs_on_cpu", lambda: False)
    monkeypatch.setattr(
        memory_plan,
        "stored_numbers",
        lambda model, *where: MODELS[model].stored if model in MODELS else stored(model, *where),
    )
