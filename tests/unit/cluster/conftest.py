"""Fixtures of the command's tests; also makes the stand-in beside them importable in any import mode."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.client import client
from cluster.client.retries import Retries
from cluster.launch.application import free_port

sys.path.insert(0, str(Path(__file__).parent))

from endpoint_stand_in import Endpoint, listening


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits half a minute for an endpoint that fails on purpose."""
    monkeypatch.setattr(client, "DEFAULT_RETRIES", Retries(backoff_s=0.005, backoff_max_s=0.01))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A fresh stand-in, listening."""
    with listening() as stand_in:
        yield stand_in


@pytest.fixture
def nobody() -> str:
    """A URL that nothing listens on."""
    return f"http://127.0.0.1:{free_port()}"
