"""vLLM models that vLLM does not have: a Qwen2 trunk and a head with one number for each token.

`deployments.engines.rewards.plugin` registers them, the families name them.
"""

from abc import abstractmethod
from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn
from transformers.utils import cached_file
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix
from vllm.sequence import IntermediateTensors

REWARD_HEAD = "reward_head.pt"


class Qwen2WithHead(nn.Module):
    """Returns one value per token, of shape (tokens, 1)."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        vllm_config.model_config.hf_config.num_labels = 1
        self.head_dtype = vllm_config.model_config.head_dtype
        self.model = Qwen2Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        pooler_config = vllm_config.model_config.pooler_config
        assert pooler_config is not None
        self.pooler = pooler_for_token_classify(pooler_config)

    @abstractmethod
    def values(self, hidden: Tensor) -> Tensor:
        """Turns the trunk's (tokens, width) output, in the head's type, into (tokens, 1) values."""

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
        return self.values(hidden.to(self.head_dtype))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        unused = ["lm_head.", "score.reg_model."]
        loaded: set[str] = AutoWeightsLoader(self, ignore_unexpected_prefixes=unused).load_weights(weights)
        return loaded


class Summary(nn.Module):
    """The linear layer, named as in the checkpoints: ``v_head.summary``."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.summary = nn.Linear(width, 1, dtype=dtype)


@default_pooling_type(tok_pooling_type="ALL")
class Qwen2ForPrmModel(Qwen2WithHead):
    """The model of `ValueHead`."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.v_head = Summary(vllm_config.model_config.hf_config.hidden_size, self.head_dtype)

    def values(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.v_head.summary(hidden)
        return values


@default_pooling_type(tok_pooling_type="ALL")
class Qwen2ForTrajectoryReward(Qwen2WithHead):
    """The model of `Trajectory`, whose linear layer is in a file of its own beside the checkpoint's."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        model = vllm_config.model_config
        self._checkpoint, self._revision = model.model, model.revision
        self.reward_head = nn.Linear(model.hf_config.hidden_size, 1, dtype=self.head_dtype)

    def values(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.reward_head(hidden)
        return values

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        file = cached_file(self._checkpoint, REWARD_HEAD, revision=self._revision)
        head: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        return super().load_weights(chain(weights, ((f"reward_head.{name}", part) for name, part in head.items())))


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

    WIDTH = 128

    def __init__(self, heads: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.nn1 = Linears(heads, width, self.WIDTH, dtype)
        self.nn2 = Linears(heads, self.WIDTH, self.WIDTH, dtype)
        self.nn_out = Linears(heads, self.WIDTH, 1, dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        first = self.nn1(hidden.expand(self.heads, -1, -1)).relu()
        logits: Tensor = self.nn_out(self.nn2(first).relu())
        return logits


@default_pooling_type(tok_pooling_type="ALL")
class Qwen2ForEnsemblePRM(Qwen2WithHead):
    """The model of `EnsembleHead`. A value is the mean of the heads' sigmoids."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        self.score = nn.ModuleDict({"model": Ensemble(config.num_ensemble, config.hidden_size, self.head_dtype)})

    def values(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.score["model"](hidden)
        return logits.sigmoid().mean(dim=0)
