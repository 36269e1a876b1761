"""Merges a LoRA adapter into a model's weights. The engine then has an ordinary model: this works for every
architecture, family and device."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import cached_file

_PREFIX = "base_model.model."
_DOWN, _UP = _FACTORS = (".lora_A.weight", ".lora_B.weight")
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
        """``path``: a directory or a hub id.

        Raises:
            ValueError: the adapter is of another kind, or lacks weights.
            OSError: there is no adapter.
        """
        with open(cached_file(path, "adapter_config.json")) as file:
            config: dict[str, Any] = json.load(file)
        unread = [name for name in _UNREAD if config.get(name)]
        if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or unread:
            raise ValueError(
                f"the adapter {path!r} cannot be merged: its peft_type is {config.get('peft_type')!r}, its "
                f"bias {config.get('bias')!r}, and it sets {', '.join(unread) or 'nothing else'}"
            )
        self._path = path
        self._alpha = float(config["lora_alpha"])
        self._stabilized = bool(config.get("use_rslora"))
        tensors = load_file(cached_file(path, "adapter_model.safetensors"))
        self._parts = {name.removeprefix(_PREFIX): part for name, part in tensors.items()}
        self._require_pairs()
        for module in config.get("modules_to_save") or ():
            if not any(f".{module}." in f".{name}" for name in self.whole):
                raise ValueError(f"the adapter {path!r} lacks the weights of {module}, which its modules_to_save names")

    @property
    def whole(self) -> dict[str, Tensor]:
        """The weights that take the place of the model's, by name."""
        return {name: part for name, part in self._parts.items() if ".lora_" not in name}

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks the adapter against the shapes of the model's weights, by name.

        Raises:
            ValueError: the model lacks a weight that the adapter changes, or has another shape.
        """
        for name, down in self._parts.items():
            if name.endswith(_DOWN):
                module = name.removesuffix(_DOWN)
                own = shapes.get(f"{module}.weight")
                if own is None:
                    raise ValueError(self._unknown(name))
                change = (len(self._parts[module + _UP]), down.shape[1])
                if own != change:
                    raise ValueError(
                        f"the adapter {self._path!r} changes {module}.weight by {change[0]} x {change[1]} numbers; the "
                        f"model's has the shape {own}"
                    )

    def _require_pairs(self) -> None:
        for name, part in self._parts.items():
            if ".lora_" not in name:
                continue
            factor = next((each for each in _FACTORS if name.endswith(each)), None)
            if factor is None:
                raise ValueError(f"the adapter {self._path!r} cannot be merged: it has {name}")
            other = name.removesuffix(factor) + (_UP if factor == _DOWN else _DOWN)
            if other not in self._parts:
                raise ValueError(f"the adapter {self._path!r} has {name} without {other}")
            if factor == _DOWN and len(part) != self._parts[other].shape[1]:
                raise ValueError(f"the ranks of {name} and {other} of the adapter {self._path!r} differ")

    def _unknown(self, name: str) -> str:
        return f"the adapter {self._path!r} changes weights that the model does not have: {name}"

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
            raise ValueError(self._unknown(unused[0]))
        yield from parts.items()
