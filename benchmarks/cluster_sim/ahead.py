"""What writing ahead gains, simulated: on this machine as `benchmarks.write_ahead` measured it, and on GPUs.

Of a GPU only its engine steps are known: `benchmarks.gpu_curves` times them with torch alone. Replicas, controllers and
calls cost what they cost on this machine, each on a core of its own.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from benchmarks.cluster_sim import points
from benchmarks.cluster_sim.costs import BatchCurve, Costs, EngineCosts
from benchmarks.cluster_sim.workload import Language, Problem, Written
from deployments.engines.settings import WriteAheadSetting
from deployments.engines.write_ahead import CPU, Device

OFF = 0.0
"""Setting that begins nothing. Calls are timed with it, unlike with ``off``."""
WIDTH = 16
ALL = float(WIDTH)
"""Setting that begins all children that a step may get."""
SEARCHES = 16
MEASURED = CPU._replace(least_turn_s=0.0)
"""As it was when write_ahead-c705d7e was measured: that result led to the least turn."""
GPU_SETTINGS: tuple[WriteAheadSetting, ...] = ("auto", ALL)
GPU_LOADS = (1, 4, 16)
STEP_TOKENS = 32
"""Mean tokens of a step on a GPU: `benchmarks.gpu_curves` times reward models on new steps of that length."""
CONTEXT = 256
"""Path length, in tokens, whose timings are used: recorded paths with steps of `STEP_TOKENS` are about as long."""
GPU_BATCH = 256
LENGTH_SHAPE = 4.0
"""Shape of the gamma distribution of siblings' lengths where they differ: an assumption. Their standard deviation is
half of the mean, and the longest of 16 has twice the mean."""


class Reads(StrEnum):
    """What a reward model computes of a path."""

    STEP = "new step"
    """The rest is in its prefix cache."""
    PATH = "whole path"


class Pair(NamedTuple):
    """Two models on a GPU each, by their shapes in `benchmarks.gpu_curves`."""

    generator: str
    prm: str
    reads: Reads = Reads.STEP


GPU_PAIRS = (Pair("1.5B", "7B"), Pair("7B", "7B"), Pair("1.5B", "7B", Reads.PATH))


def compared(
    costs: Costs,
    language: Language,
    clients: int,
    cores: float | None,
    settings: Sequence[WriteAheadSetting],
    slow: bool = False,
    device: Device = CPU,
    searches: int = SEARCHES,
) -> dict[str, Any]:
    """Simulates the same beam searches without writing ahead and with each of the settings.

    Args:
        cores: that all programs share; None: each has its own.
        slow: every call of the reward model takes as long as the generator takes for a level.
        device: how the generator's replica writes ahead.

    Returns:
        One value for each setting: ``ratio``, the time with writing ahead over that without if searches are alone, the
        throughput with over without otherwise; ``asked_for``, the share of the begun children that their search asked
        for; ``finished_by_then``, the share of these that were finished when it did; ``unused``, the share of all
        generated tokens that no search asked for. And ``same``: whether every setting wrote the same searches and left
        nothing behind. Without writing ahead: ``level_s``, mean time of a call of the generator, and ``turn_s``, from
        its end to the search's next one.
    """

    def served(setting: WriteAheadSetting, least_score_s: float) -> dict[str, Any]:
        return points.served(
            costs,
            language,
            points.beam(WIDTH, 4),
            clients,
            searches,
            cores,
            write_ahead=setting,
            least_score_s=least_score_s,
            device=device,
        )

    least_score_s = served(OFF, 0.0)["level_s"] if slow else 0.0
    off = served(OFF, least_score_s)
    on = [served(setting, least_score_s) for setting in settings]
    times = [side["seconds"] / off["seconds"] for side in on]
    counts = [side["ahead"] for side in on]
    return {
        "in_flight": clients,
        "level_s": off["level_s"],
        "turn_s": off["turn_s"],
        "ratio": [round(time if clients == 1 else 1 / time, 3) for time in times],
        "asked_for": [_share(each["ahead_adopted"], each["ahead_begun"]) for each in counts],
        "finished_by_then": [_share(each["ahead_adopted_finished"], each["ahead_adopted"]) for each in counts],
        "unused": [_share(side["ahead"]["ahead_unused_tokens"], side["engine_tokens"]) for side in on],
        "same": all(_written(side) == _written(off) and not side["left_over"] for side in (off, *on)),
    }


def _share(part: int, of: int) -> float:
    return round(part / max(of, 1), 3)


def _written(side: dict[str, Any]) -> tuple[float, ...]:
    return tuple(side["per_search"][name] for name in ("nodes", "repeated_steps", "generated_tokens"))


def gpu_costs(shapes: Mapping[str, Any], pair: Pair, of: Costs) -> Costs:
    """Costs with a pair's engines, from ``curves`` of `benchmarks.gpu_curves`; all other costs are those of ``of``."""
    from benchmarks.gpu_curves import BLOCK, POOL_BYTES, SHAPES  # imports torch

    def engine(shape: str, step_s: dict[int, float], token_s: float, replica: BatchCurve) -> EngineCosts:
        curve = BatchCurve(step_s=step_s, token_s=token_s, request_s=0.0, call_s=0.0)
        blocks = POOL_BYTES["cuda"] // (SHAPES[shape].kv_bytes * BLOCK)
        return EngineCosts(engine=curve, replica=replica, blocks=blocks, block_size=BLOCK, max_num_seqs=GPU_BATCH)

    def read_s(shape: str, reads: Reads) -> dict[int, float]:
        """Seconds by the number of paths."""
        seconds = {Reads.STEP: "step_s", Reads.PATH: "whole_s"}[reads]
        return {each["paths"]: each[seconds] for each in shapes[shape]["reading"] if each["tokens"] == CONTEXT}

    write_s = {each["batch"]: each["step_s"] for each in shapes[pair.generator]["decode"] if each["context"] == CONTEXT}
    # Of a step that reads few prompt tokens, as those are that join a running batch behind a cached prefix.
    few = read_s(pair.generator, Reads.STEP)
    token_s = (few[4] - few[1]) / (3 * STEP_TOKENS)
    return of.model_copy(
        update={
            "generator": engine(pair.generator, write_s, token_s, of.generator.replica),
            "prm": engine(pair.prm, read_s(pair.prm, pair.reads), 0.0, of.prm.replica),  # tokens are in the curve
        }
    )


def longer(language: Language, repeats: bool) -> Language:
    """The same searches with steps of `STEP_TOKENS` at the mean, and longer prompts.

    Args:
        repeats: whether siblings repeat each other as recorded. If not, all have texts and lengths of their own.
    """
    rng = random.Random(0)
    steps = [step for problem in language.problems for level in problem.levels for family in level for step in family]
    factor = STEP_TOKENS / statistics.mean(step.tokens for step in steps)

    def family_of(family: tuple[Written, ...]) -> tuple[Written, ...]:
        if repeats:
            return tuple(step._replace(tokens=round(factor * step.tokens)) for step in family)
        lengths = (rng.gammavariate(LENGTH_SHAPE, factor / LENGTH_SHAPE) for _ in range(WIDTH))
        members = zip((family * WIDTH)[:WIDTH], lengths, strict=True)
        return tuple(
            step._replace(tokens=max(1, round(length * step.tokens)), text=index)
            for index, (step, length) in enumerate(members)
        )

    def of(problem: Problem) -> Problem:
        levels = tuple(tuple(map(family_of, level)) for level in problem.levels)
        return problem._replace(prompt_tokens=round(factor * problem.prompt_tokens), levels=levels)

    return Language([of(problem) for problem in language.problems])
