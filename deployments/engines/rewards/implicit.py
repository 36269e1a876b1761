"""Family ``implicit``: a language model's log-probabilities against those of the model that it was trained from."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import Query, RewardFamily, RewardModelSettings, Shapes
from deployments.engines.rewards.heads import StepwiseHead
from kvstore.memory.geometry import MODELS

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from deployments.engines.engine_calls import Output

REFERENCE = "banyan_reference"
"""Entry of the policy's configuration that names the reference model to the engine."""
REFERENCE_REVISION = "banyan_reference_revision"
REFERENCE_PREFIX = "pair.reference."
"""What the names of its weights begin with in the engine."""
SEPARATOR = "\n\n"


class Implicit(StepwiseHead):
    """The format of EurusPRM (arXiv 2502.01456), an implicit process reward model (arXiv 2412.01981).

    The path is one chat turn of the assistant: the steps, without surrounding whitespace, and two newlines after each.
    A reward is the sigmoid of β times the sum of ``log π(token) - log π_ref(token)`` over the tokens of the step and
    its newlines or, if ``accumulate``, of all steps up to it: the paper's r_t and q_t.

    Source: the model card of PRIME-RL/EurusPRM-Stage2 (``beta_reward = coef * raw_reward``, coef 0.001, then
    ``cumsum``), and ``implicit_prm_data_collator`` and ``get_reward`` in ``eval/prm_eval_utils.py`` of
    PRIME-RL/ImplicitPRM, which calls the two sums ``single`` and ``accumulative``. Two things there depend on what a
    search does not know yet: the card's code counts the first one or two tokens of the next step to a step, and both
    have no newlines but the end of the turn after the last step.
    """

    vllm_model = "deployments.engines.rewards.implicit_model:PolicyAndReference"
    reads_chat = True

    def __init__(self, settings: "ImplicitSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the reference has another vocabulary than the model."""
        from transformers import AutoTokenizer

        super().__init__(settings, tokenizer)
        self._beta = settings.beta
        self._accumulate = settings.accumulate
        try:
            reference = AutoTokenizer.from_pretrained(
                settings.reference,
                revision=settings.reference_revision,
                trust_remote_code=settings.tokenizer.trust_remote_code,
            )
        except (OSError, ValueError) as error:
            raise EngineStartError(f"prm.reference {settings.reference!r} has no tokenizer: {error}") from error
        if reference.get_vocab() != tokenizer.get_vocab():
            raise EngineStartError(
                f"prm.reference {settings.reference!r} has another vocabulary than {settings.model!r}"
            )

    @classmethod
    def head_shapes(cls, config: "PreTrainedConfig") -> Shapes | None:
        return None

    def step_ids(self, step: str) -> list[int]:
        return self.chat.encode_text(step.strip() + SEPARATOR)

    def query(self, question: str, steps: Sequence[str], unscored: int) -> Query:
        query = super().query(question, steps, unscored)
        # The row at a position is about the token behind it: the first one is at the last token before the sum.
        before = 0 if self._accumulate else query.known
        query = query._replace(first=(before or len(self.questions[question])) - 1)
        return query.uncached() if self._accumulate else query

    def rewards(self, output: "Output", query: Query) -> list[float]:
        from torch import stack

        rows = output.outputs.data
        missing = self.missing_rows(output, query)
        bounds = [position - missing for position in (query.first, *query.tags)]
        if rows.ndim != 2 or rows.shape[1] != self.classes or bounds[0] < 0:
            raise ValueError(f"the engine returned a tensor of {tuple(rows.shape)} for {len(query.token_ids)} tokens")
        sums = stack([rows[start:end].double().sum(dim=0) for start, end in pairwise(bounds)])
        return [float(reward) for reward in self.rewards_of(sums.cumsum(dim=0) if self._accumulate else sums)]

    def rewards_of(self, rows: "Tensor") -> "Tensor":
        return (self._beta * rows[:, 0]).sigmoid()


class ImplicitSettings(RewardModelSettings):
    """A language model and the model that it was trained from: two models in one engine."""

    family: Literal["implicit"] = "implicit"
    reference: str = Field(
        min_length=1,
        description="Directory or hub id of the reference model, which has the model's shape and vocabulary. It "
        "needs weights and KV memory of its own.",
    )
    reference_revision: str | None = Field(
        None,
        min_length=1,
        description="Branch, tag or commit of the reference model on the hub; engine_args.revision is that of the "
        "model.",
    )
    beta: float = Field(0.001, gt=0, le=1, description="Factor of the sum of log-probability ratios (beta).")
    accumulate: bool = Field(
        False,
        description="Sum the ratios over the path up to the step instead of over the step alone. Each step then "
        "reads the whole path.",
    )
    reader: ClassVar[type[RewardFamily]] = Implicit

    @property
    def model_paths(self) -> dict[str, str]:
        return {**super().model_paths, "reference": self.reference}

    @property
    def revisions(self) -> dict[str, str | None]:
        return {**super().revisions, "reference": self.reference_revision}

    @property
    def hf_overrides(self) -> dict[str, Any]:
        return {REFERENCE: self.reference, REFERENCE_REVISION: self.reference_revision, MODELS: 2}
