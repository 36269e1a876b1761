"""CPU costs as measured: `batch_curves` and `calls` write them, the simulation reads them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy.optimize import nnls

from benchmarks.cluster_sim.pace import EQUAL, Pace


class _Costs(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BatchCurve(_Costs):
    """CPU seconds that one program spends on the steps of an engine."""

    step_s: dict[int, float] = Field(min_length=1)
    """Seconds of a step by batch size: linear between two sizes, extrapolated beyond the last from the last two. A
    single size holds for all."""
    token_s: float = Field(ge=0)
    """For each prompt token that is computed."""
    request_s: float = Field(ge=0)
    call_s: float = Field(ge=0)
    """For a replica, of each call; for an engine, each time it has work again after being idle."""
    join_s: float = Field(0.0, ge=0)
    """For an engine, of each step in which requests join a running batch: it prefills and decodes at once, and rebuilds
    its batch."""

    def step(self, batch: int) -> float:
        """Seconds of a step with ``batch`` requests."""
        sizes = self._sizes
        if len(sizes) == 1:
            return self.step_s[sizes[0]]
        above = min(max(bisect_right(sizes, batch), 1), len(sizes) - 1)
        low, high = sizes[above - 1], sizes[above]
        share = (max(batch, sizes[0]) - low) / (high - low)
        return self.step_s[low] + share * (self.step_s[high] - self.step_s[low])

    def times(self, factor: float) -> "BatchCurve":
        """The curve of a program that takes ``factor`` times as long for everything."""
        return BatchCurve(
            step_s={batch: factor * seconds for batch, seconds in self.step_s.items()},
            token_s=factor * self.token_s,
            request_s=factor * self.request_s,
            call_s=factor * self.call_s,
            join_s=factor * self.join_s,
        )

    def model_post_init(self, context: Any) -> None:
        self._sizes: tuple[int, ...]
        object.__setattr__(self, "_sizes", tuple(sorted(self.step_s)))


class EngineCosts(_Costs):
    """Costs of one engine and its replica."""

    engine: BatchCurve
    replica: BatchCurve
    """The process in front of the engine; its steps are the messages that it gets from the engine."""
    blocks: int = Field(ge=1)
    block_size: int = Field(ge=1)
    max_num_seqs: int = Field(ge=1)

    def times(self, factor: float) -> "EngineCosts":
        """Costs of an engine and a replica that take ``factor`` times as long for everything."""
        return self.model_copy(update={"engine": self.engine.times(factor), "replica": self.replica.times(factor)})


class CallCosts(_Costs):
    """CPU seconds spent around the engines: trees, calls between replicas, HTTP."""

    controller: dict[str, float]
    """For each search, expand call, group of children, child, score call and item; ``wake``: each time it has work
    again after being idle."""
    generator: dict[str, float]
    """For each call, group and child of a replica, beside its engine."""
    prm: dict[str, float]
    """For each call and item."""
    proxy: dict[str, float]
    """For each search."""
    client: dict[str, float]
    """For each search."""
    others: dict[str, float]
    """Ray's and Serve's own processes, for each search."""
    background: float = Field(ge=0)
    """CPU seconds per second of an idle application."""


class Costs(_Costs):
    generator: EngineCosts
    prm: EngineCosts
    calls: CallCosts
    pace: Pace = EQUAL
    """Pace of the machine where the costs were measured. Costs are those of a program alone on the machine, at that
    speed."""

    @classmethod
    def of(cls, curves: Mapping[str, Any], calls: Mapping[str, Any]) -> "Costs":
        """Costs from the results of ``curves`` and ``calls``."""
        then, pace = (Pace.model_validate(result["pace"]) for result in (curves, calls))
        engines = {}
        for role in ("generator", "prm"):
            costs = EngineCosts(
                engine=curves[role]["engine"], replica=curves[role]["replica"], **curves["engines"][role]
            )
            engines[role] = costs.times(then.speed / pace.speed)
        # Idle engines use CPU time too; those of `calls` were fakes.
        background = calls["costs"]["background"] + sum(curves["idle"].values())
        return cls(**engines, calls={**calls["costs"], "background": background}, pace=pace)

    def at(self, speedup: float) -> "Costs":
        """Costs on the same machine at ``speedup`` times the speed."""
        calls = {
            role: {part: seconds / speedup for part, seconds in of.items()}
            for role, of in self.calls.model_dump(exclude={"background"}).items()
        }
        return self.model_copy(
            update={
                "generator": self.generator.times(1 / speedup),
                "prm": self.prm.times(1 / speedup),
                "calls": CallCosts(**calls, background=self.calls.background),
            }
        )

    def slower(self, factor: float) -> "Costs":
        """Costs with engines that take ``factor`` times as long; replicas stay as they are."""
        engines = {
            role: costs.model_copy(update={"engine": costs.engine.times(factor)})
            for role, costs in (("generator", self.generator), ("prm", self.prm))
        }
        return self.model_copy(update=engines)


def fitted(spent: Sequence[float], parts: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each part, fitted to measurements: ``spent[i]`` seconds went to ``parts[i]`` units of each part. Least
    squares of the relative errors, so that a small measurement counts as much as a large one; no part is negative."""
    seconds, _ = nnls(np.array(parts, dtype=float) / np.array(spent)[:, None], np.ones(len(spent)))
    return [float(each) for each in seconds]
