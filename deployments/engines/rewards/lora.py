"""Merges a LoRA adapter into a model's weights. The engine then has an ordinary model: this works for every
architecture, family and device."""

import json
import math
from collections.abc import Iterator
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import cached_file

_PREFIX = "base_model.model."
_FACTORS = (".lora_A.weight", ".lora_B.weight")
_UNREAD = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "fan_in_fan_out",
    "layer_replication",
    "use_dora",
    "use_qalora",
)
"""Entries of an adapter's configuration by which its formula would be another."""


class Adapter:
    """A low-rank adapter (arXiv 2106.09685) in the files of Hugging Face's PEFT.

    A weight W becomes W + s·B·A with s = α / r, or α / √r if the adapter is rank-stabilized (arXiv 2312.03732). Weights
    that the adapter has as a whole (``modules_to_save``, such as a head) take the place of the model's. Source:
    ``LoraLayer.update_layer`` and ``Linear.get_delta_weight`` in ``src/peft/tuners/lora/layer.py`` of
    huggingface/peft.
    """

    def __init__(self, path: str) -> None:
        """``path``: a directory or a hub id. Raises ValueError when the adapter is of another kind."""
        with open(cached_file(path, "adapter_config.json")) as file:
            config: dict[str, Any] = json.load(file)
        unread = [name for name in _UNREAD if config.get(name)]
        if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or unread:
            raise ValueError(
                f"the adapter {path!r} is none that can be merged: its peft_type is {config.get('peft_type')!r}, its "
                f"bias {config.get('bias')!r}, and it sets {', '.join(unread) or 'nothing else'}"
            )
        self._path = path
        self._alpha = float(config["lora_alpha"])
        self._stabilized = bool(config.get("use_rslora"))
        tensors = load_file(cached_file(path, "adapter_model.safetensors"))
        self._parts = {name.removeprefix(_PREFIX): part for name, part in tensors.items()}

    def merged(self, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields the model's weights with the adapter merged, in their own dtypes, then the weights that only it has.

        Raises:
            ValueError: the model lacks a weight that the adapter changes.
        """
        parts = dict(self._parts)
        for name, weight in weights:
            down, up = (parts.pop(name.removesuffix(".weight") + factor, None) for factor in _FACTORS)
            if down is not None and up is not None:
                rank = len(down)
                scale = self._alpha / (math.sqrt(rank) if self._stabilized else rank)
                # Computed in full precision: the product of two half-precision factors is small beside the weight.
                yield name, (weight.float() + scale * (up.float() @ down.float())).to(weight.dtype)
            else:
                yield name, parts.pop(name, weight).to(weight.dtype)
        if unused := [name for name in parts if ".lora_" in name]:
            raise ValueError(f"the adapter {self._path!r} changes weights that the model does not have: {unused[0]}")
        yield from parts.items()
