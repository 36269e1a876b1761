"""What sets reward families apart: how a path becomes requests to an engine, and outputs become rewards.

A family is one module: its settings, which the settings tree is made of, and how it reads and writes. So its module is
imported wherever settings are checked: vLLM, torch and transformers are imported inside functions only.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cachetools import LRUCache
from pydantic import Field

from deployments.engines.settings import EngineSettings, Runner

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import PoolingParams, SamplingParams
    from vllm.config import PoolerConfig

    from deployments.engines.engine_calls import Output

MAX_REMEMBERED_CHARACTERS = 4_000
"""A longer text is encoded every time."""

_REMEMBERED_TOKENS = 500_000
"""Of a family's questions, and of its steps: 25 MB at most."""
_ENTRY_TOKENS = 16
"""What an entry takes beside its ids, in tokens."""


def remembered_ids() -> LRUCache[str, list[int]]:
    """Token ids of texts: a step is encoded once for all paths through it."""
    return LRUCache(_REMEMBERED_TOKENS, getsizeof=lambda ids: len(ids) + _ENTRY_TOKENS)


TEMPLATE_TOKENS = 64
"""More than a chat template adds of its own, default system prompt, role marks and the last step's tag included."""


class Query(NamedTuple):
    """One request to the engine, which scores one or more steps of a path."""

    token_ids: list[int]
    params: "PoolingParams | SamplingParams"
    tags: tuple[int, ...]
    """Where each of its steps is scored: positions in ``token_ids``, one per step, in order."""


class RewardFamily(ABC):
    """One way of scoring steps. ``queries`` is called with texts nobody vouches for."""

    runner: ClassVar[Runner]
    """The vLLM runner that the family's engine needs."""
    vllm_model: ClassVar[str | None] = None
    """``module:Class`` of the model to load, whatever the checkpoint calls itself; None for those that vLLM has."""

    @abstractmethod
    def __init__(self, settings: Any, tokenizer: "PreTrainedTokenizerBase") -> None:
        """For the family's own settings. Raises EngineStartError when the model is none of the family."""

    @classmethod
    def pooler(cls) -> "PoolerConfig | None":
        """The engine's pooler, where the runner has one."""
        return None

    @abstractmethod
    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        """The requests that score the last ``unscored`` steps, oldest first.

        Raises:
            ValueError: a text is not valid Unicode.
        """

    @abstractmethod
    def rewards(self, output: "Output", query: Query) -> list[float]:
        """The rewards of the query's steps, in order; not validated.

        Raises:
            ValueError: the output has not the shape that was asked for.
        """


class RewardModelSettings(EngineSettings):
    """A process reward model. What only one family reads is a setting of that family."""

    family: str
    """How the model scores a step; each family says its own name."""
    reward_cache_size: int = Field(100_000, ge=0, description="Rewards a replica remembers, by path.")
    scoring_delay_s: float = Field(
        0.5,
        gt=0,
        le=3600,
        description="How long a step may wait for the rewards of others; the pool grows where that is 0.8 of this.",
    )
    reader: ClassVar[type[RewardFamily]]
    """The family."""
    tokens_per_step: ClassVar[int] = 0
    """What the family's format adds to a step, at most, beyond the delimiter that it takes away: nothing where a tag
    takes the delimiter's place."""

    def format_tokens(self, steps: int) -> int:
        """What the family's format adds to a question and so many steps, at most: tokens."""
        system_prompt = getattr(self, "system_prompt", None) or ""
        # A token has one byte or more.
        return TEMPLATE_TOKENS + len(system_prompt.encode()) + self.tokens_per_step * steps
