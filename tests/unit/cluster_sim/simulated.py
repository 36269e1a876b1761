"""Invented costs and problems, for simulations that take milliseconds."""

import random

from benchmarks.cluster_sim.costs import BatchCurve, CallCosts, Costs, EngineCosts
from benchmarks.cluster_sim.workload import Language, Problem, Written

CURVE = BatchCurve(step_s={1: 0.001, 4: 0.002, 64: 0.004}, token_s=5e-6, request_s=1e-4, call_s=1e-4, join_s=1e-4)
FREE = BatchCurve(step_s={1: 0.0}, token_s=0.0, request_s=0.0, call_s=0.0, join_s=0.0)
ENGINE = EngineCosts(engine=CURVE, replica=CURVE.times(0.2), blocks=4000, block_size=32, max_num_seqs=64)
CALLS = CallCosts(
    controller={
        "search": 4e-3,
        "expand": 8e-4,
        "group": 3e-4,
        "child": 1e-4,
        "score": 8e-4,
        "item": 1e-4,
        "wake": 3e-4,
    },
    generator={"call": 5e-4, "group": 3e-4, "child": 1e-4},
    prm={"call": 5e-4, "item": 1e-4},
    proxy={"search": 2e-3},
    client={"search": 2e-3},
    others={"search": 1e-3},
    background=0.05,
)
NO_CALLS = CallCosts(
    controller=dict.fromkeys(CALLS.controller, 0.0),
    generator=dict.fromkeys(CALLS.generator, 0.0),
    prm=dict.fromkeys(CALLS.prm, 0.0),
    proxy={"search": 0.0},
    client={"search": 0.0},
    others={"search": 0.0},
    background=0.0,
)
COSTS = Costs(generator=ENGINE, prm=ENGINE, calls=CALLS)


def language(problems: int = 8, seed: int = 1) -> Language:
    """A language of problems with four to six levels; the steps of the last level end their paths."""
    rng = random.Random(seed)

    def family(size: int, last: bool) -> tuple[Written, ...]:
        def written() -> Written:
            text = rng.randrange(3)
            return Written(8 + 3 * text, text, 1 + text if last else 0, round(rng.random(), 3))

        return tuple(written() for _ in range(size))

    def problem() -> Problem:
        depth = rng.randint(4, 6)
        levels = tuple(
            tuple(family(4 if level else 16, level == depth - 1) for _ in range(4 if level else 1))
            for level in range(depth)
        )
        return Problem(rng.randint(50, 100), 0, 0, levels)

    return Language([problem() for _ in range(problems)])
