"""Fixtures of the endpoint. Also makes the fakes beside the tests importable in any import mode."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from search.answers.equivalence import AnswerMatcher

sys.path.insert(0, str(Path(__file__).parent))

from http_world import World


@pytest.fixture(scope="session")
def matcher() -> Iterator[AnswerMatcher]:
    made = AnswerMatcher()
    yield made
    made.close()


@pytest_asyncio.fixture
async def world(matcher: AnswerMatcher) -> AsyncIterator[World]:
    made = World(matcher)
    yield made
    made.assert_idle()


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(matcher: AnswerMatcher) -> MakeWorld:
    return lambda **settings: World(matcher, **settings)
