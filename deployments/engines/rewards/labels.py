"""Base class of the two families whose language model predicts a label, + or -, after every step."""

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from deployments.engines.encoding import ChatEncoder
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import Query, RewardFamily, RewardModelSettings
from deployments.engines.settings import Runner

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from deployments.engines.engine_calls import Output


class LabelSettings(RewardModelSettings):
    """What both families with labels are told."""

    labels: tuple[str, str] = Field(("+", "-"), description="The tokens for right and wrong.")


class LabelTokens(RewardFamily):
    """The reward of a step is the probability of the good label: the softmax over the logits of the two labels.

    Each step takes one query: a prompt that ends where the label is predicted, and one generated token. Only the two
    log-probabilities leave the engine. Their difference is that of the logits, so the softmax over two is the same.
    """

    runner: ClassVar[Runner] = "generate"

    def __init__(self, settings: LabelSettings, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the labels are not two different tokens of the model."""
        self.chat = ChatEncoder(tokenizer)
        self._good, self._bad = (last_token(tokenizer, label) for label in settings.labels)
        if self._good == self._bad:
            raise EngineStartError(f"prm.labels {settings.labels} are the same token of {settings.model!r}")

    def query(self, token_ids: list[int]) -> Query:
        """The query for a prompt after which the label of one step is predicted."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprob_token_ids=[self._good, self._bad],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        return Query(token_ids, params, (len(token_ids) - 1,))

    def rewards(self, output: "Output", query: Query) -> list[float]:
        rows = output.outputs[0].logprobs
        if not rows or not {self._good, self._bad} <= rows[0].keys():
            raise ValueError("the engine gave no log-probabilities of the labels")
        margin = rows[0][self._bad].logprob - rows[0][self._good].logprob
        return [1.0 / (1.0 + math.exp(margin)) if margin < 700 else 0.0]


def last_token(tokenizer: "PreTrainedTokenizerBase", text: str, before: str = "") -> int:
    """The id of the token that spells ``text`` after ``before``, including a leading space where the tokenizer has one.

    Raises EngineStartError when the text is no single token.
    """
    ids = tokenizer.encode(before + text, add_special_tokens=False)
    if not ids or tokenizer.decode([ids[-1]]).strip() != text.strip():
        raise EngineStartError(f"{text!r} is no token of the process reward model")
    return int(ids[-1])
