"""Changes a reward model's weights while vLLM loads them, so that vLLM needs no model of ours.

A linear head gets the name of the one that vLLM adds to a language model of any architecture to make it a classifier,
and an adapter is merged. The files are read as they are. Imports vLLM.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import cached_file
from vllm.config import LoadConfig, ModelConfig
from vllm.model_executor.model_loader import DefaultModelLoader, register_model_loader

from deployments.engines.rewards.family import LinearHead
from deployments.engines.rewards.lora import Adapter
from deployments.engines.worker_extension import WorkerExtension

LOAD_FORMAT = "banyan_reward_model"
VLLM_HEAD = "score."
WRAPPER = "pretrained_model."
"""Where TRL's models with a value head have the language model, in checkpoints that its trainer did not write."""


def loader_args(lora: str | None, head: LinearHead | None) -> dict[str, Any]:
    """vLLM's arguments for a model with an adapter, a head, both or neither."""
    if lora is None and head is None:
        return {}
    extension = f"{LoaderExtension.__module__}.{LoaderExtension.__qualname__}"
    args: dict[str, Any] = {
        "load_format": LOAD_FORMAT,
        "model_loader_extra_config": {"lora": lora, "head": head},
        "worker_extension_cls": extension,
    }
    if head is not None:
        args |= {"convert": "classify", "hf_overrides": partial(_as_language_model, classes=head.classes)}
    return args


def _as_language_model(config: PretrainedConfig, classes: int) -> PretrainedConfig:
    """The configuration with the architecture of a language model of its type, which vLLM makes a classifier."""
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    config.update({"architectures": [architecture] if architecture else config.architectures, "num_labels": classes})
    return config


def with_vllm_names(head: LinearHead, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The weights, with the names that vLLM has for the head and the language model."""
    for name, part in weights:
        if name.startswith(head.prefix):
            weight = part.float().mean(dim=0, keepdim=True) if head.mean else part
            yield VLLM_HEAD + name.removeprefix(head.prefix), weight
        else:
            yield name.removeprefix(WRAPPER), part


@register_model_loader(LOAD_FORMAT)
class RewardModelLoader(DefaultModelLoader):  # type: ignore[misc]  # vLLM does not export its type
    """vLLM's own loader, with an adapter and a head."""

    def __init__(self, load_config: LoadConfig) -> None:
        extra = load_config.model_loader_extra_config
        assert isinstance(extra, dict)
        self._adapter = None if extra["lora"] is None else Adapter(extra["lora"])
        self._head: LinearHead | None = extra["head"]
        super().__init__(replace(load_config, load_format="auto", model_loader_extra_config={}))

    def get_all_weights(self, model_config: ModelConfig, model: nn.Module) -> Generator[tuple[str, Tensor], None, None]:
        weights: Iterator[tuple[str, Tensor]] = super().get_all_weights(model_config, model)
        if self._adapter is not None:
            weights = self._adapter.merged(weights)
        if (head := self._head) is not None:
            if head.file is not None:
                file = cached_file(model_config.model, head.file, revision=model_config.revision)
                parts: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
                weights = chain(weights, ((head.prefix + name, part) for name, part in parts.items()))
            weights = with_vllm_names(head, weights)
        yield from weights


class LoaderExtension(WorkerExtension):
    """What vLLM imports in an engine's process before it loads the model: the loader is then known there."""
