"""A reward function whose behaviour a file sets: it returns a reward or NaN, is slow, or fails."""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "BANYAN_TEST_MISBEHAVIOUR"
SLOW_S = 2.0


class Misbehaviour:
    """The test's side: sets the behaviour of the function. Create it before Ray starts, whose processes inherit its
    environment variable."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "behaviour"
        self._say("well")
        os.environ[VARIABLE] = str(self._file)

    @contextmanager
    def __call__(self, behaviour: str) -> Iterator[None]:
        """Behaves as ``nan``, ``slow``, ``gone`` or ``negative`` within the block."""
        self._say(behaviour)
        try:
            yield
        finally:
            self._say("well")

    def _say(self, behaviour: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(behaviour)
        new.replace(self._file)


def reward(question: str, steps: Sequence[str]) -> float:
    """The replica's side: a reward that depends only on the texts, or what the file says."""
    behaviour = Path(os.environ[VARIABLE]).read_text()
    match behaviour:
        case "nan":
            return float("nan")
        case "negative":
            return -1.0
        case "gone":
            raise ConnectionError("the checker's secret address 10.9.8.7 does not answer")
        case "slow":
            time.sleep(SLOW_S)
    digest = hashlib.blake2b("\n".join((question, *steps)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32
