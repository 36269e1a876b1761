"""What solver processes are asked to do. They import this module, so it imports little itself."""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from search.problem import StepClusters

NO_FUNCTION = 7


def doubled(argument: int, clusters: StepClusters | None) -> int:
    return 2 * argument


def pid(argument: Any, clusters: StepClusters | None) -> int:
    print("libraries do print things")
    return os.getpid()


def hangs(argument: Any, clusters: StepClusters | None) -> None:
    time.sleep(600)


def dies(argument: Any, clusters: StepClusters | None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fails(argument: Any, clusters: StepClusters | None) -> None:
    raise ValueError("of its own")


def one_kind(texts: Sequence[str]) -> list[int]:
    return [0] * len(texts)


def as_many_kinds_as_texts(texts: Sequence[str]) -> list[int]:
    return list(range(len(texts)))


def one_too_few(texts: Sequence[str]) -> list[int]:
    return [0] * (len(texts) - 1)


def in_which_process(texts: Sequence[str]) -> list[int]:
    return [os.getpid() for _ in texts]


def clustered(argument: list[str], clusters: StepClusters | None) -> list[int]:
    assert clusters is not None
    return list(clusters(argument))
