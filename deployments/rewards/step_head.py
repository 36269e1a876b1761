"""A two-class head at a special token after every step."""

from collections.abc import Sequence

import torch
from cachetools import LRUCache
from transformers import PreTrainedTokenizerBase
from vllm import PoolingParams, PoolingRequestOutput
from vllm.config import PoolerConfig

from deployments.config import PrmSettings
from deployments.encoding import ChatEncoder
from deployments.engine import EngineStartError, Runner
from deployments.engine_calls import Output
from deployments.rewards.family import REMEMBERED_TEXTS, Query, RewardFamily

DEFAULT_TAG = "<extra_0>"


class StepHead(RewardFamily):
    """As Qwen2.5-Math-PRM (arXiv 2501.07301).

    The path is one chat turn of the assistant: each step's text, without the whitespace around it,
    then the tag as a token id. A reward is the softmax probability of class 1 at the tag.
    """

    runner: Runner = "pooling"

    def __init__(self, settings: PrmSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises EngineStartError when the step tag is no special token of the model."""
        self._chat = ChatEncoder(tokenizer)
        self._system = settings.system_prompt
        name = settings.step_tag or DEFAULT_TAG
        tag = tokenizer.get_added_vocab().get(name)
        if tag is None:
            raise EngineStartError(f"prm.step_tag {name!r} is no special token of {settings.model!r}")
        self._tag = tag
        self._questions: LRUCache[str, list[int]] = LRUCache(REMEMBERED_TEXTS)
        self._steps: LRUCache[str, list[int]] = LRUCache(REMEMBERED_TEXTS)

    @classmethod
    def pooler(cls) -> PoolerConfig:
        # Not STEP pooling: it looks for tags at the prompt's positions in rows that lack the cached prefix.
        return PoolerConfig(tok_pooling_type="ALL")

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        token_ids = list(self._question_ids(question))
        tags: list[int] = []
        for step in steps:
            token_ids += self._step_ids(step)
            tags.append(len(token_ids) - 1)
        # The last position is always computed, so one new step may stand on a cached path. Several
        # new steps may be cached in part (by a sibling): then every row has to be there.
        params = PoolingParams(task="token_classify", use_activation=False, skip_reading_prefix_cache=unscored > 1)
        return [Query(token_ids, params, tuple(tags[-unscored:]))]

    def rewards(self, output: Output, query: Query) -> list[float]:
        assert isinstance(output, PoolingRequestOutput)
        rows = output.outputs.data
        # Rows end where the path ends; those of a cached prefix are missing in front.
        missing = len(query.token_ids) - len(rows)
        wanted = [tag - missing for tag in query.tags]
        if rows.ndim != 2 or rows.shape[1] != 2 or wanted[0] < 0:
            raise ValueError(f"{tuple(rows.shape)} rows for {len(query.token_ids)} tokens, {len(wanted)} tags")
        return [float(reward) for reward in torch.softmax(rows[wanted].double(), dim=-1)[:, 1].tolist()]

    def _question_ids(self, question: str) -> list[int]:
        ids = self._questions.get(question)
        if ids is None:
            turns = [{"role": "user", "content": question}]
            if self._system is not None:
                turns.insert(0, {"role": "system", "content": self._system})
            ids = self._questions[question] = self._chat.encode_chat(turns)
        return ids

    def _step_ids(self, step: str) -> list[int]:
        ids = self._steps.get(step)
        if ids is None:
            ids = self._steps[step] = [*self._chat.encode_text(step.strip()), self._tag]
        return ids
