"""Base class of the families whose model has a head: numbers for every token, read where a step ends."""

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
    """A family that scores all unscored steps of a path with one query and reads the rows of its tags."""

    runner: ClassVar[Runner] = "pooling"
    classes: ClassVar[int]
    """Numbers per token."""

    @classmethod
    def pooler(cls) -> "PoolerConfig":
        from vllm.config import PoolerConfig

        # Not STEP pooling: it looks up tags by prompt position, in rows from which the cached prefix is missing.
        return PoolerConfig(tok_pooling_type="ALL")

    @abstractmethod
    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        """The token ids of a path, up to where its last step is scored, and the position at which each step is scored.

        Raises:
            ValueError: a text is not valid Unicode.
        """

    @abstractmethod
    def rewards_of(self, rows: "Tensor") -> "Tensor":
        """Turns a head's (steps, classes) numbers, in double precision, into (steps,) rewards."""

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        from vllm import PoolingParams

        token_ids, tags = self.encode(question, steps)
        # The last position is always computed, so a query for one new step may read the prefix cache. Of several new
        # steps some may be cached (by a sibling), and their rows would be missing.
        params = PoolingParams(task="token_classify", use_activation=False, skip_reading_prefix_cache=unscored > 1)
        known = tags[-unscored - 1] + 1 if len(tags) > unscored else 0
        return [Query(token_ids, params, tuple(tags[-unscored:]), known)]

    def rewards(self, output: "Output", query: Query) -> list[float]:
        rows = output.outputs.data
        # The rows of a cached prefix are missing at the front.
        missing = len(query.token_ids) - len(rows)
        wanted = [tag - missing for tag in query.tags]
        if rows.ndim != 2 or rows.shape[1] != self.classes or wanted[0] < 0:
            raise ValueError(f"{tuple(rows.shape)} rows for {len(query.token_ids)} tokens, {len(wanted)} tags")
        return [float(reward) for reward in self.rewards_of(rows[wanted].double()).tolist()]
