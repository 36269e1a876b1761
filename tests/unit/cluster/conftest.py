"""Fixtures of the command's tests. Also makes the stand-in beside the tests importable in any import mode."""

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
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without long waits: here endpoints fail on purpose."""
    monkeypatch.setattr(client, "DEFAULT_RETRIES", Retries(backoff_s=0.005, backoff_max_s=0.01))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A new stand-in that listens."""
    with listening() as stand_in:
        yield stand_in


@pytest.fixture
def nobody() -> str:
    """A URL that nothing listens on."""
    return f"http://127.0.0.1:{free_port()}"
