"""One real application for all serve tests: two generator replicas, a PRM, a controller, LMCache, HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

import tests.ray_environment  # noqa: F401  # before Ray is imported
from tests.serve.application import Application, running, tolerate_rays_warnings

OWN_RAY = "test_node_cache.py"


class TwoProcesses(LoadScopeScheduling):
    """All tests of the application in one process. Those with a Ray of their own mostly wait: they run in another one
    while the application starts."""

    def _split_scope(self, nodeid: str) -> str:
        return "a Ray of its own" if OWN_RAY in nodeid else "the application"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoProcesses:
    return TwoProcesses(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a single process tests with a Ray of their own go first, since afterwards it is the application's driver."""
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        tolerate_rays_warnings(item)
        item.add_marker(pytest.mark.timeout(900))
    others = [item for item in items if item not in ours]
    items[:] = [*others, *sorted(ours, key=lambda item: item.path.name != OWN_RAY)]


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    settings = {
        "generator": {"replicas": {"min_replicas": 2, "max_replicas": 2}},
        "http": {"canary_every_s": 0},
        "controller": {
            "limits": {"seconds": 300},
            "store": {"path": str(tmp_path_factory.mktemp("store")), "batch_requests": 4},
        },
    }
    with running(settings, tmp_path_factory.mktemp("keys")) as application:
        yield application


@pytest.fixture
def idle(application: Application) -> Iterator[Application]:
    """The application, which must be idle and complete before and after the test."""
    application.wait_until_whole()
    yield application
    application.wait_until_whole()
