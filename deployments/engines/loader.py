"""Loads a model's weights into an engine: with an adapter and a head, without what is of no use, and all of them.

vLLM then needs no model of ours: a linear head gets the name of the one that vLLM adds to a language model of any
architecture to make it a classifier, and an adapter is merged. The files are read as they are. What vLLM did not write
is kept for `missing_weights`: vLLM's own check leaves out all linear layers. Imports vLLM.
"""

from collections import Counter
from collections.abc import Collection, Generator, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils import cached_file
from vllm.config import LoadConfig, ModelConfig, get_current_vllm_config
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.model_loader import DefaultModelLoader, register_model_loader

from deployments.engines.load_arguments import LOAD_FORMAT
from deployments.engines.rewards.family import WRAPPER, LinearHead
from deployments.engines.rewards.lora import Adapter

VLLM_HEAD = "score."
_missing: list[str] = []
"""Weights of this process's model that were not loaded."""


def missing_weights() -> list[str]:
    """Names of the weights that the model of this process has, and that were not loaded."""
    return list(_missing)


def with_vllm_names(head: LinearHead, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The weights, with the names that vLLM has for the head and the language model."""
    for name, part in weights:
        if name.startswith(head.prefix):
            weight = part.float().mean(dim=0, keepdim=True) if head.mean else part
            yield VLLM_HEAD + name.removeprefix(head.prefix), weight
        else:
            yield name.removeprefix(WRAPPER), part


@register_model_loader(LOAD_FORMAT)
class BanyanLoader(DefaultModelLoader):  # type: ignore[misc]  # vLLM does not export its type
    """vLLM's own loader, with an adapter and a head."""

    def __init__(self, load_config: LoadConfig) -> None:
        extra = load_config.model_loader_extra_config
        assert isinstance(extra, dict)
        self._adapter = None if extra["lora"] is None else Adapter(extra["lora"])
        self._head: LinearHead | None = extra["head"]
        self._unused = frozenset(extra["unused"])
        super().__init__(replace(load_config, load_format="auto", model_loader_extra_config={}))

    def get_all_weights(self, model_config: ModelConfig, model: nn.Module) -> Generator[tuple[str, Tensor], None, None]:
        weights: Iterator[tuple[str, Tensor]] = super().get_all_weights(model_config, model)
        if self._adapter is not None:
            weights = self._adapter.merged(weights)
        weights = ((name, part) for name, part in weights if name not in self._unused)
        if (head := self._head) is not None:
            if head.file is not None:
                file = cached_file(model_config.model, head.file, revision=model_config.revision)
                parts: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
                weights = chain(weights, ((head.prefix + name, part) for name, part in parts.items()))
            weights = with_vllm_names(head, weights)
        yield from weights

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        self._reported: set[str] = set()
        with Writes(model) as writes:
            super().load_weights(model, model_config)
        # A draft model shares weights of the one that it writes for.
        if model_config.quantization is None and model_config is get_current_vllm_config().model_config:
            _missing.extend(writes.missing(self._reported))

    def track_weights_loading(self, model: nn.Module, loaded_weights: set[str] | None, quantized: bool = False) -> None:
        """Keeps what vLLM says that it has loaded: `missing_weights` goes by it, and by what was written."""
        self._reported = set(loaded_weights or ())


class Writes(TorchDispatchMode):
    """Counts the numbers that are written into a model's weights while they are loaded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._before = {name: _address(weight) for name, weight in model.named_parameters()}
        self._written: Counter[int] = Counter()
        """Numbers by the address of their storage."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Operations that write do so into their first argument: most are copies into a part of a weight.
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable and args and isinstance(args[0], Tensor):
            self._written[_address(args[0])] += args[0].numel()
        return func(*args, **(kwargs or {}))

    def missing(self, reported: Collection[str]) -> list[str]:
        """Weights that were there before and have not been written since, nor been reported as loaded; and linear
        layers that were written in part, whatever was reported: one of them stands for several of a checkpoint."""
        found: list[str] = []
        for prefix, module in self._model.named_modules():
            whole = isinstance(module, LinearBase) and isinstance(module.quant_method, UnquantizedLinearMethod)
            for own, weight in module.named_parameters(recurse=False):
                name = f"{prefix}.{own}" if prefix else own
                if not weight.numel() or self._before.get(name) != _address(weight):
                    continue  # made while it was loaded
                written = self._written[_address(weight)]
                if not written and name not in reported:
                    found.append(name)
                elif whole and 0 < written < weight.numel():
                    found.append(f"{name} ({written} of its {weight.numel()} numbers are there)")
        return found


def _address(weight: Tensor) -> int:
    return int(weight.untyped_storage().data_ptr())
