"""Makes the fakes beside the tests importable in any import mode, and starts what is slow to start once."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from search.answers.equivalence import AnswerMatcher

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def matcher() -> Iterator[AnswerMatcher]:
    matcher = AnswerMatcher()
    yield matcher
    matcher.close()


@pytest.fixture(scope="session", autouse=True)
def no_overlap() -> Iterator[None]:
    """Searches go on only when nothing is in flight. Otherwise a pause of the machine could change their calls."""
    with mock.patch("search.run.runner.ASK_WAIT_S", math.inf):
        yield
