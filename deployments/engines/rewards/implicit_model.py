"""The vLLM model of family `implicit`: two language models of one shape that read the same tokens.

Both are in one engine, so that a path's blocks hold the keys and values of both: one prefix cache, one ledger.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler.common import PoolingParamsUpdate
from vllm.model_executor.layers.pooler.tokwise import AllPool, TokenPooler
from vllm.model_executor.model_loader import DefaultModelLoader
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.utils import AutoWeightsLoader, init_vllm_registered_model, maybe_prefix
from vllm.sequence import IntermediateTensors
from vllm.tasks import PoolingTask
from vllm.transformers_utils.config import get_config
from vllm.v1.pool.metadata import PoolingMetadata

from deployments.engines.rewards.implicit import REFERENCE, REFERENCE_PREFIX, REFERENCE_REVISION

LOGIT_ROWS = 256
"""Rows whose logits are computed at once: 300 MB for both models with a vocabulary of 150,000."""


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": -1})
class Pair(nn.Module):
    """Policy and reference. They are compiled as one: vLLM keeps one compiled graph for a model."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model = vllm_config.model_config
        # The configuration at hand names the family's model as its architecture.
        policy = get_config(model.model, model.trust_remote_code, model.revision)
        own = model.hf_config
        reference = get_config(getattr(own, REFERENCE), model.trust_remote_code, getattr(own, REFERENCE_REVISION))
        self.policy, self.reference = (
            init_vllm_registered_model(vllm_config, hf_config=config, prefix=maybe_prefix(prefix, name))
            for name, config in (("policy", policy), ("reference", reference))
        )

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return torch.cat((self.policy(input_ids, positions), self.reference(input_ids, positions)), dim=-1)


class AllRows(AllPool):  # type: ignore[misc]  # vLLM does not export its type
    """All rows of a request from its last start on, for a head that reads its tokens too.

    vLLM's older runner keeps the chunks of a preempted request. It begins again, so their rows would come twice.
    """

    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor | None]:
        cursor = pooling_metadata.get_pooling_cursor()
        ends = cursor.seq_lens_cpu.tolist()
        lengths = cursor.num_scheduled_tokens_cpu.tolist()
        for state, end, length in zip(pooling_metadata.pooling_states, ends, lengths, strict=True):
            if getattr(state, "end", end - length) != end - length:
                state.clean()
            state.end = end
        rows: list[Tensor | None] = super().forward(hidden_states, pooling_metadata)
        return rows

    def get_pooling_updates(self, task: PoolingTask) -> PoolingParamsUpdate:
        return PoolingParamsUpdate(requires_token_ids=True)


@default_pooling_type(tok_pooling_type="ALL")
class PolicyAndReference(nn.Module):
    """Returns for each token ``log π - log π_ref`` of the token behind it, of shape (tokens, 1)."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.pair = Pair(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        source, revision = getattr(config, REFERENCE), getattr(config, REFERENCE_REVISION)
        self.secondary_weights = [DefaultModelLoader.Source(source, revision, prefix=REFERENCE_PREFIX)]
        self.pooler = TokenPooler(AllRows(), self._log_ratios)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        embedded: Tensor = self.pair.policy.embed_input_ids(input_ids)
        return embedded

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        assert input_ids is not None
        states: Tensor = self.pair(input_ids, positions)
        return states

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        named = ((name if name.startswith("pair.") else f"pair.policy.{name}", part) for name, part in weights)
        loaded: set[str] = AutoWeightsLoader(self).load_weights(named)
        return loaded

    def _log_ratios(self, states: list[Tensor | None], metadata: PoolingMetadata) -> list[Tensor | None]:
        tokens = metadata.get_prompt_token_ids_cpu()
        return [None if rows is None else self._log_ratio(rows, ids) for rows, ids in zip(states, tokens, strict=True)]

    def _log_ratio(self, rows: Tensor, token_ids: Tensor) -> Tensor:
        """``rows``: hidden states of the request's last tokens. The last token has no next token, so its ratio is 0."""
        behind = token_ids[len(token_ids) - len(rows) + 1 :, None].to(rows.device)
        ratios = [
            self._log_probabilities(self.pair.policy, policy, targets)
            - self._log_probabilities(self.pair.reference, reference, targets)
            for states, targets in zip(rows[:-1].split(LOGIT_ROWS), behind.split(LOGIT_ROWS), strict=True)
            for policy, reference in [states.chunk(2, dim=-1)]
        ]
        return torch.cat([*ratios, rows.new_zeros((1, 1), dtype=torch.float32)])

    @staticmethod
    def _log_probabilities(model: Any, states: Tensor, targets: Tensor) -> Tensor:
        logits: Tensor = model.compute_logits(states)
        return logits.float().log_softmax(dim=-1).gather(-1, targets)
