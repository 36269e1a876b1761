"""Facts of published models: contexts from their ``config.json``, shapes from their papers and configurations."""

from dataclasses import dataclass

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

    def weight_bytes(self, devices: int) -> int:
        """On each of the engine's devices, in 16 bits."""
        return int(2e9 * self.billions / devices)

    def geometry(self, devices: int) -> KVGeometry:
        page = BLOCK * 2 * 2 * self.head * self.kv_heads // devices
        return KVGeometry((KVGroup(self.layers, page, BLOCK),), self.layers * page)


MODELS = {
    "Qwen/Qwen2.5-1.5B-Instruct": Model(32_768, 1.54, 28, 2, 128),
    "Qwen/Qwen2.5-Math-PRM-7B": Model(4096, 7.08, 28, 4, 128),
    "meta-llama/Llama-3.2-1B-Instruct": Model(131_072, 1.24, 16, 8, 64),
    "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data": Model(131_072, 8.03, 32, 8, 128),
    "Qwen/Qwen3-8B": Model(40_960, 8.19, 36, 8, 128),
    "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B": Model(4096, 7.08, 28, 4, 128),
    "meta-llama/Llama-3.3-70B-Instruct": Model(131_072, 70.6, 80, 8, 128),
}
DEVICE_GIB = {
    "qwen2.5-1.5b_math-prm-7b": 22.5,
    "llama3.2-1b_rlhflow-8b": 22.5,
    "qwen3-8b_skywork-7b": 22.5,
    "llama3.3-70b_rlhflow-8b": 79.0,
    "one-24gb-gpu": 22.5,
}
"""Memory of the GPUs that a configuration is for, as its comment says."""
