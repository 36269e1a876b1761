"""One real application for all serve tests: two generator replicas, a PRM, a controller, LMCache, HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.ray_environment  # noqa: F401  # before Ray is imported
from tests.serve.application import Application, running, tolerate_rays_warnings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a Ray of their own go first, since afterwards this process is the application's driver."""
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        tolerate_rays_warnings(item)
        item.add_marker(pytest.mark.timeout(900))
    others = [item for item in items if item not in ours]
    items[:] = [*others, *sorted(ours, key=lambda item: item.path.name != "test_node_cache.py")]


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    settings = {
        "generator": {"replicas": {"min_replicas": 2, "max_replicas": 2}},
        "http": {"canary_every_s": 0},
        "controller": {
            "limits": {"seconds": 300},
            "max_loop_delay_s": 60.0,  # a controller that got no processor for a second would refuse what comes next
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
