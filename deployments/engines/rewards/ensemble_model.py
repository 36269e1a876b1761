"""The vLLM model of family `ensemble_head`: a Qwen2 trunk and several heads of three layers."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix
from vllm.sequence import IntermediateTensors

from deployments.engines.rewards.ensemble_head import WIDTH


class Linears(nn.Module):
    """A linear layer of each head: (heads, tokens, in) to (heads, tokens, out)."""

    def __init__(self, heads: int, width: int, out: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, width, out, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(heads, out, dtype=dtype))

    def forward(self, given: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[:, None], given, self.weight)


class Ensemble(nn.Module):
    """Heads of three layers, named as in the checkpoints."""

    def __init__(self, heads: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.nn1 = Linears(heads, width, WIDTH, dtype)
        self.nn2 = Linears(heads, WIDTH, WIDTH, dtype)
        self.nn_out = Linears(heads, WIDTH, 1, dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        first = self.nn1(hidden.expand(self.heads, -1, -1)).relu()
        logits: Tensor = self.nn_out(self.nn2(first).relu())
        return logits


@default_pooling_type(tok_pooling_type="ALL")
class Qwen2ForEnsemblePRM(nn.Module):
    """Returns for each token the mean of the heads' sigmoids, of shape (tokens, 1)."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config, pooler_config = vllm_config.model_config.hf_config, vllm_config.model_config.pooler_config
        assert pooler_config is not None
        config.num_labels = 1
        self.head_dtype = vllm_config.model_config.head_dtype
        self.model = Qwen2Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.score = nn.ModuleDict({"model": Ensemble(config.num_ensemble, config.hidden_size, self.head_dtype)})
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
        logits: Tensor = self.score["model"](hidden.to(self.head_dtype))
        return logits.sigmoid().mean(dim=0)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        unused = ["lm_head.", "score.reg_model."]
        loaded: set[str] = AutoWeightsLoader(self, ignore_unexpected_prefixes=unused).load_weights(weights)
        return loaded
