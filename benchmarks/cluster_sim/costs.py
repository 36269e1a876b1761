"""What everything costs, as it was measured: `batch_curves` and `calls` write it, the simulation reads it."""

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
    """CPU seconds of one program for the steps of an engine."""

    step_s: dict[int, float] = Field(min_length=1)
    """By batch size. Between two it is linear, beyond the last as from the last but one; one alone holds for all."""
    token_s: float = Field(ge=0)
    """For each prompt token that is computed."""
    request_s: float = Field(ge=0)
    call_s: float = Field(ge=0)
    """Of a replica for each call, of an engine whenever it has work again."""
    join_s: float = Field(0.0, ge=0)
    """Of an engine for each step in which requests join others: it reads and decodes at once, and sets its batch up
    anew."""

    def step(self, batch: int) -> float:
        """A step with so many requests."""
        sizes = self._sizes
        if len(sizes) == 1:
            return self.step_s[sizes[0]]
        above = min(max(bisect_right(sizes, batch), 1), len(sizes) - 1)
        low, high = sizes[above - 1], sizes[above]
        share = (max(batch, sizes[0]) - low) / (high - low)
        return self.step_s[low] + share * (self.step_s[high] - self.step_s[low])

    def times(self, factor: float) -> "BatchCurve":
        """Where everything takes so many times as long."""
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
    """One engine and its replica."""

    engine: BatchCurve
    replica: BatchCurve
    """Of the process in front of the engine: steps are the messages that it gets from it."""
    blocks: int = Field(ge=1)
    block_size: int = Field(ge=1)
    max_num_seqs: int = Field(ge=1)

    def times(self, factor: float) -> "EngineCosts":
        """Where everything takes so many times as long."""
        return self.model_copy(update={"engine": self.engine.times(factor), "replica": self.replica.times(factor)})


class CallCosts(_Costs):
    """CPU seconds of what is around the engines: trees, calls between replicas, HTTP."""

    controller: dict[str, float]
    """For each search, expand call, group of children, child, score call and item; and for each time that it has
    something to do again."""
    generator: dict[str, float]
    """Of a replica, beside its engine: for each call, group and child."""
    prm: dict[str, float]
    """For each call and item."""
    proxy: dict[str, float]
    """For each search."""
    client: dict[str, float]
    """For each search."""
    others: dict[str, float]
    """Of Ray and Serve, for each search."""
    background: float = Field(ge=0)
    """Of all that is busy when nothing is asked: CPU seconds a second."""


class Costs(_Costs):
    generator: EngineCosts
    prm: EngineCosts
    calls: CallCosts
    pace: Pace = EQUAL
    """Of the machine where all this was measured. Costs are of a program that has the machine for itself, at that
    speed."""

    @classmethod
    def of(cls, curves: Mapping[str, Any], calls: Mapping[str, Any]) -> "Costs":
        """From the two results."""
        then, pace = (Pace.model_validate(result["pace"]) for result in (curves, calls))
        engines = {}
        for role in ("generator", "prm"):
            costs = EngineCosts(
                engine=curves[role]["engine"], replica=curves[role]["replica"], **curves["engines"][role]
            )
            engines[role] = costs.times(then.speed / pace.speed)
        # Engines are busy with nothing, too; those of `calls` were fakes.
        background = calls["costs"]["background"] + sum(curves["idle"].values())
        return cls(**engines, calls={**calls["costs"], "background": background}, pace=pace)

    def at(self, fast: float) -> "Costs":
        """On the same machine when it is so many times as fast."""
        calls = {
            role: {part: seconds / fast for part, seconds in of.items()}
            for role, of in self.calls.model_dump(exclude={"background"}).items()
        }
        return self.model_copy(
            update={
                "generator": self.generator.times(1 / fast),
                "prm": self.prm.times(1 / fast),
                "calls": CallCosts(**calls, background=self.calls.background),
            }
        )

    def slower(self, factor: float) -> "Costs":
        """With engines that take so many times as long, and replicas as they are."""
        engines = {
            role: costs.model_copy(update={"engine": costs.engine.times(factor)})
            for role, costs in (("generator", self.generator), ("prm", self.prm))
        }
        return self.model_copy(update=engines)


def explained(spent: Sequence[float], parts: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each part, where each of the measurements that spent so much had so many of it: the least squares of
    relative errors, so that a small one counts as much as a large one, and none below zero."""
    seconds, _ = nnls(np.array(parts, dtype=float) / np.array(spent)[:, None], np.ones(len(spent)))
    return [float(each) for each in seconds]
