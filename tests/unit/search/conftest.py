"""Makes the fakes beside the tests importable in any import mode, and starts what is slow to start once."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from search.answers.equivalence import AnswerMatcher

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def matcher() -> Iterator[AnswerMatcher]:
    matcher = AnswerMatcher()
    yield matcher
    matcher.close()
