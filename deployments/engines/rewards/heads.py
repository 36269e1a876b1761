"""Heads: a model that gives numbers at every token, read where a step ends. What their families share."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from deployments.engines.rewards.family import Query, RewardFamily
from deployments.engines.settings import Runner

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import PoolerConfig

    from deployments.engines.engine_calls import Output


class Head(RewardFamily):
    """One query scores all unscored steps of a path: the rows of its tags are read."""

    runner: ClassVar[Runner] = "pooling"
    classes: ClassVar[int]
    """Numbers per token."""

    @classmethod
    def pooler(cls) -> "PoolerConfig":
        from vllm.config import PoolerConfig

        # Not STEP pooling: it looks for tags at the prompt's positions in rows that lack the cached prefix.
        return PoolerConfig(tok_pooling_type="ALL")

    @abstractmethod
    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        """The token ids of a path that ends where its last step is scored, and where each step is scored.

        Raises:
            ValueError: a text is not valid Unicode.
        """

    @abstractmethod
    def rewards_of(self, rows: "Tensor") -> "Tensor":
        """(steps, classes) of a head's numbers, in double precision, to (steps,) rewards."""

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        from vllm import PoolingParams

        token_ids, tags = self.encode(question, steps)
        # The last position is always computed, so one new step may stand on a cached path. Several
        # new steps may be cached in part (by a sibling): then every row has to be there.
        params = PoolingParams(task="token_classify", use_activation=False, skip_reading_prefix_cache=unscored > 1)
        return [Query(token_ids, params, tuple(tags[-unscored:]))]

    def rewards(self, output: "Output", query: Query) -> list[float]:
        rows = output.outputs.data
        # Rows end where the path ends; those of a cached prefix are missing in front.
        missing = len(query.token_ids) - len(rows)
        wanted = [tag - missing for tag in query.tags]
        if rows.ndim != 2 or rows.shape[1] != self.classes or wanted[0] < 0:
            raise ValueError(f"{tuple(rows.shape)} rows for {len(query.token_ids)} tokens, {len(wanted)} tags")
        return [float(reward) for reward in self.rewards_of(rows[wanted].double()).tolist()]
