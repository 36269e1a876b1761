"""Random LoRA adapters in the files of Hugging Face's PEFT, and the weights with them, merged by hand."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RANK = 4
ALPHA = 12.0


def save_adapter(
    directory: Path, weights: dict[str, torch.Tensor], whole: dict[str, torch.Tensor] | None = None, **config: Any
) -> None:
    """An adapter of ``weights``, which has ``whole`` in place of the model's own."""
    directory.mkdir()
    tensors = {f"base_model.model.{name}": part for name, part in (whole or {}).items()}
    for name, weight in weights.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{module}.lora_A.weight"] = torch.randn(RANK, weight.shape[1]) / 5
        tensors[f"{module}.lora_B.weight"] = torch.randn(weight.shape[0], RANK) / 5
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    known = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "use_dora": False}
    (directory / "adapter_config.json").write_text(json.dumps(known | config))


def add_by_hand(weights: dict[str, torch.Tensor], directory: Path) -> None:
    """Adds α / r · B·A to the weights that the adapter changes."""
    factors = load_file(directory / "adapter_model.safetensors")
    for name, weight in weights.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in factors:
            down, up = factors[f"{module}.lora_A.weight"], factors[f"{module}.lora_B.weight"]
            weight.add_(ALPHA / RANK * up @ down)
