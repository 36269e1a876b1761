"""Family ``ensemble_head``: the mean of several heads, read at a special token after every step."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from deployments.engines.rewards.family import RewardFamily, RewardModelSettings, Shapes
from deployments.engines.rewards.step_head import StepHead
from deployments.engines.settings import SystemPrompt

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig

WIDTH = 128
"""Numbers between the layers of a head."""
SYSTEM_PROMPT = (
    "You are a helpful and harmless assistant. "
    "You should think step-by-step and put your final answer within \\boxed{}."
)


class EnsembleHead(StepHead):
    """The format of ActPRM and ActPRM-X (arXiv 2504.10559): Qwen2.5-Math-PRM's, with a system prompt.

    A reward is the mean over the heads of the sigmoid of their logits at the tag. Source: ``EnsemblePRMWorker`` in
    ``examples/py_scripts/test_actprm_on_processbench.py``, ``Qwen2ForEnsemblePRM.inference`` in
    ``src/active_prm/models/qwen2_ensemble_prm/modeling_qwen2.py`` and ``src/active_prm/models/nets.py`` of
    sail-sg/ActivePRM.
    """

    classes = 1
    classifier = None
    vllm_model = "deployments.engines.rewards.ensemble_model:Qwen2ForEnsemblePRM"

    @classmethod
    def head_shapes(cls, config: "PreTrainedConfig") -> Shapes | None:
        heads = getattr(config, "num_ensemble", None)
        layers = {"nn1": (config.hidden_size, WIDTH), "nn2": (WIDTH, WIDTH), "nn_out": (WIDTH, 1)}
        weights: Shapes = {f"score.model.{name}.weight": (heads, *size) for name, size in layers.items()}
        return weights | {f"score.model.{name}.bias": (heads, size[1]) for name, size in layers.items()}

    def rewards_of(self, rows: "Tensor") -> "Tensor":
        return rows[:, 0]


class EnsembleHeadSettings(RewardModelSettings):
    """A model with an ensemble of heads at a tag behind every step."""

    family: Literal["ensemble_head"] = "ensemble_head"
    step_tag: str = Field("<extra_0>", min_length=1, description="Token at which a step's reward is read.")
    system_prompt: SystemPrompt = SYSTEM_PROMPT
    reader: ClassVar[type[RewardFamily]] = EnsembleHead
