"""What sets reward families apart: how a path becomes requests to an engine, and outputs become rewards."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from vllm import PoolingParams, SamplingParams
from vllm.config import PoolerConfig

from deployments.engines.engine_calls import Output
from deployments.engines.settings import Runner

REMEMBERED_TEXTS = 50_000
"""Token ids of questions and steps that are kept: a step is encoded once for all paths through it."""

LONGEST_REMEMBERED = 4_000
"""Characters; a longer text is encoded every time."""


class Query(NamedTuple):
    """One request to the engine, which judges one or more steps of a path."""

    token_ids: list[int]
    params: PoolingParams | SamplingParams
    tags: tuple[int, ...]
    """Where each of its steps is judged: positions in ``token_ids``, one per step, in order."""


class RewardFamily(ABC):
    """One way of judging steps. ``queries`` is called with texts nobody vouches for."""

    runner: Runner
    """The vLLM runner that the family's engine needs."""
    architecture: ClassVar[str | None] = None
    """The vLLM model to load, whatever the checkpoint calls itself."""

    @classmethod
    def pooler(cls) -> PoolerConfig | None:
        """The engine's pooler, where the runner has one."""
        return None

    @abstractmethod
    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        """The requests that judge the last ``unscored`` steps, oldest first.

        Raises:
            ValueError: a text is not valid Unicode.
        """

    @abstractmethod
    def rewards(self, output: Output, query: Query) -> list[float]:
        """The rewards of the query's steps, in order; not validated.

        Raises:
            ValueError: the output has not the shape that was asked for.
        """
