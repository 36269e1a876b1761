"""Claims of the routing benchmark."""

import pytest

from benchmarks.routing import DEFAULT, LOADS, OURS, Run, claims

READY = "consistent hash"


def held_of(seconds: dict[str, tuple[float, float]], noise: float) -> list[bool]:
    ran = {
        load: {arm: [Run(took[place], [], [took[place]], {}, 0.0)] for arm, took in seconds.items()}
        for place, load in enumerate(LOADS)
    }
    rows = [
        {
            "load": load,
            "arm": arm,
            "time_over_default": {"interval": [took[place] - 1 - noise, took[place] - 1 + noise]},
            "other_answers": 0,
        }
        for place, load in enumerate(LOADS)
        for arm, took in seconds.items()
    ]
    return [each["holds"] for each in claims(ran, rows)]


@pytest.mark.parametrize(
    ("ours", "noise", "near", "faster", "much"),
    [
        ((0.8, 1.0), 0.0, [True, True], True, True),
        ((0.8, 1.0), 0.3, [True, True], False, True),
        ((0.89, 1.02), 0.0, [True, True], True, False),
        ((0.8, 1.1), 0.0, [True, False], True, True),
        ((0.95, 0.99), 0.0, [False, True], True, False),
    ],
    ids=["much faster", "within noise", "a little faster", "worse elsewhere", "not near the best"],
)
def test_claims_about_the_served_router(
    ours: tuple[float, float], noise: float, near: list[bool], faster: bool, much: bool
) -> None:
    seconds = {DEFAULT: (1.0, 1.0), READY: (0.9, 1.0), OURS: ours}

    assert held_of(seconds, noise) == [*near, faster, much, much, True]
