"""The vLLM model of `ValueHead`: a Qwen2 trunk and one linear layer.

vLLM has no such model; `deployments.engines.rewards.plugin` registers this one, which `ValueHead` names.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix
from vllm.sequence import IntermediateTensors


class Summary(nn.Module):
    """The linear layer, named as in the checkpoints: ``v_head.summary``."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.summary = nn.Linear(width, 1, dtype=dtype)


@default_pooling_type(tok_pooling_type="ALL")
class Qwen2ForPrmModel(nn.Module):
    """Returns one value per token, of shape (tokens, 1)."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        vllm_config.model_config.hf_config.num_labels = 1
        self.head_dtype = vllm_config.model_config.head_dtype
        self.model = Qwen2Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.v_head = Summary(vllm_config.model_config.hf_config.hidden_size, self.head_dtype)
        pooler_config = vllm_config.model_config.pooler_config
        assert pooler_config is not None
        self.pooler = pooler_for_token_classify(pooler_config)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        embedded: Tensor = self.model.embed_input_ids(input_ids)
        return embedded

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        hidden = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        values: Tensor = self.v_head.summary(hidden.to(self.head_dtype))
        return values

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self, ignore_unexpected_prefixes=["lm_head."]).load_weights(weights)
        return loaded
