"""What sets PRM families apart: how a path becomes token ids, and how an engine's output becomes rewards."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from cachetools import LRUCache
from transformers import PreTrainedTokenizerBase
from vllm import PoolingParams, PoolingRequestOutput
from vllm.config import PoolerConfig

from deployments.config import PrmSettings
from deployments.encoding import ChatEncoder
from deployments.engine import EngineStartError, Runner
from deployments.engine_calls import Output

REMEMBERED_TEXTS = 50_000
"""Token ids of questions and steps that are kept: a step is encoded once for all paths through it."""


class EncodedPath(NamedTuple):
    token_ids: list[int]
    tags: tuple[int, ...]
    """Where each step is judged: positions in ``token_ids``, one per step."""


class PrmFamily(ABC):
    """One way of judging steps. ``encode`` is called with texts nobody vouches for."""

    runner: Runner
    """The vLLM runner that the family's engine needs."""

    @classmethod
    @abstractmethod
    def pooler(cls) -> PoolerConfig | None:
        """The engine's pooler, where the runner has one."""

    @abstractmethod
    def encode(self, question: str, steps: Sequence[str]) -> EncodedPath:
        """The request for a path that ends with its last step's tag.

        Raises:
            ValueError: a text is not valid Unicode.
        """

    @abstractmethod
    def params(self, unscored: int) -> PoolingParams:
        """What to ask of the engine when the last ``unscored`` steps want rewards."""

    @abstractmethod
    def rewards(self, output: Output, path: EncodedPath, unscored: int) -> list[float]:
        """The rewards of the last ``unscored`` steps, in order; not validated.

        Raises:
            ValueError: the output has not the shape that was asked for.
        """


class StepHead(PrmFamily):
    """A two-class head read at a special token after every step, as Qwen2.5-Math-PRM (arXiv:2501.07301).

    The path is one chat turn of the assistant: each step's text, without the whitespace around it,
    then the tag as a token id. A reward is the softmax probability of class 1 at the tag.
    """

    runner: Runner = "pooling"

    def __init__(self, settings: PrmSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        self._chat = ChatEncoder(tokenizer)
        self._system = settings.system_prompt
        tag = tokenizer.get_added_vocab().get(settings.step_tag)
        if tag is None:
            raise EngineStartError(f"prm.step_tag {settings.step_tag!r} is no special token of {settings.model!r}")
        self._tag = tag
        self._questions: LRUCache[str, list[int]] = LRUCache(REMEMBERED_TEXTS)
        self._steps: LRUCache[str, list[int]] = LRUCache(REMEMBERED_TEXTS)

    @classmethod
    def pooler(cls) -> PoolerConfig:
        # Not STEP pooling: it looks for tags at the prompt's positions in rows that lack the cached prefix.
        return PoolerConfig(tok_pooling_type="ALL")

    def encode(self, question: str, steps: Sequence[str]) -> EncodedPath:
        token_ids = list(self._question_ids(question))
        tags: list[int] = []
        for step in steps:
            token_ids += self._step_ids(step)
            tags.append(len(token_ids) - 1)
        return EncodedPath(token_ids, tuple(tags))

    def params(self, unscored: int) -> PoolingParams:
        # The last position is always computed, so one new step may stand on a cached path. Several
        # new steps may be cached in part (by a sibling): then every row has to be there.
        return PoolingParams(task="token_classify", use_activation=False, skip_reading_prefix_cache=unscored > 1)

    def rewards(self, output: Output, path: EncodedPath, unscored: int) -> list[float]:
        assert isinstance(output, PoolingRequestOutput)
        rows = output.outputs.data
        # Rows end where the path ends; those of a cached prefix are missing in front.
        missing = len(path.token_ids) - len(rows)
        wanted = [tag - missing for tag in path.tags[-unscored:]]
        if rows.ndim != 2 or rows.shape[1] != 2 or wanted[0] < 0:
            raise ValueError(f"{tuple(rows.shape)} rows for {len(path.token_ids)} tokens, {unscored} tags")
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


FAMILIES: dict[str, type[StepHead]] = {"step_head": StepHead}


def check_rewards(rewards: Sequence[float], wanted: int) -> None:
    """Raises ValueError unless there are ``wanted`` rewards, all of them numbers in [0, 1]."""
    if len(rewards) != wanted:
        raise ValueError(f"{len(rewards)} rewards for {wanted} steps")
    if wrong := [reward for reward in rewards if not (math.isfinite(reward) and 0.0 <= reward <= 1.0)]:
        raise ValueError(f"rewards must be in [0, 1], got {wrong[0]}")
