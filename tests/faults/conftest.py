"""One real application for all tests of faults: two generators, two reward models, a controller, LMCache, HTTP.

Further controllers with other settings share its engines: a controller starts in seconds, an engine takes a minute.
The tests are short by default; `make test-faults` makes them longer.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.ray_environment  # noqa: F401  # before Ray is imported
from tests.faults.misbehaviour import Misbehaviour
from tests.faults.poison import ENGINE_ARGS, Poison
from tests.faults.processes import shared_memory
from tests.faults.variants import Variant, faulty_prm, small_limits, without_keys
from tests.serve.application import Application, running, tolerate_rays_warnings

ORDER = (
    "test_nodes.py",
    "test_hostile.py",
    "test_raw_bytes.py",
    "test_schema.py",
    "test_leaving.py",
    "test_reward_function.py",
    "test_cache_server.py",
    "test_controller.py",
    "test_hangs.py",
    "test_poison.py",
    "test_kills.py",
    "test_attacks.py",
    "test_rolling_update.py",
    "test_nothing_left.py",
)
"""Tests with a cluster of their own come first; then the least harmful first. The last one ends the application."""
LASTING = ("--kill-seconds", "--fuzz-seconds", "--attack-seconds")
"""Options that say how long a test takes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kill-seconds", type=float, default=45.0, help="how long replicas are killed at random")
    parser.addoption("--least-kills", type=int, default=1, help="kills go on longer, until there have been this many")
    parser.addoption("--schema-cases", type=int, default=100, help="random requests from /openapi.json")
    parser.addoption("--attack-seconds", type=float, default=20.0, help="how long all attacks are sent at once")
    parser.addoption("--fuzz-seconds", type=float, default=20.0, help="how long raw bytes are sent to the proxy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        tolerate_rays_warnings(item)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1200 + max(map(item.config.getoption, LASTING))))
    others = [item for item in items if item not in ours]
    items[:] = [*others, *sorted(ours, key=lambda item: ORDER.index(item.path.name))]


@pytest.fixture(scope="session")
def shared_memory_before() -> set[str]:
    """Names in shared memory before the application started."""
    return shared_memory()


@pytest.fixture(scope="session")
def application(
    tmp_path_factory: pytest.TempPathFactory,
    shared_memory_before: set[str],
    misbehaviour: Misbehaviour,
    poison: Poison,
) -> Iterator[Application]:
    two = {"min_replicas": 2, "max_replicas": 2}
    settings = {
        # Forced on: under `auto` it is off on a CPU.
        "generator": {"replicas": two, "write_ahead": 2.0, "engine_args": ENGINE_ARGS},
        "prm": {"replicas": two, "engine_args": ENGINE_ARGS},
        "http": {"canary_every_s": 0},
        # A small store: the attacks have it remove the oldest of its searches.
        "controller": {
            "limits": {"seconds": 120},
            "store": {"path": str(tmp_path_factory.mktemp("store")), "searches_max": 20},
        },
    }
    with running(settings, tmp_path_factory.mktemp("keys")) as application:
        application.wait_until_whole()
        yield application


@pytest.fixture
def whole(application: Application) -> Iterator[Application]:
    """The application, which must be idle and complete before and after the test."""
    application.wait_until_whole()
    yield application
    application.wait_until_whole()


@pytest.fixture(scope="session")
def limited(application: Application) -> Iterator[Variant]:
    """The same engines behind a controller with small limits."""
    with small_limits(application) as variant:
        yield variant


@pytest.fixture(scope="session")
def keyless(application: Application) -> Iterator[Variant]:
    """The same engines behind a controller without API keys, and without a store."""
    with without_keys(application) as variant:
        yield variant


@pytest.fixture(scope="session")
def misbehaviour(tmp_path_factory: pytest.TempPathFactory) -> Misbehaviour:
    return Misbehaviour(tmp_path_factory.mktemp("reward"))


@pytest.fixture(scope="session")
def poison(tmp_path_factory: pytest.TempPathFactory) -> Poison:
    return Poison(tmp_path_factory.mktemp("poison"))


@pytest.fixture(scope="session")
def with_reward_function(application: Application) -> Iterator[Variant]:
    """The same generators behind a controller whose rewards come from a function; `misbehaviour` sets its behaviour."""
    with faulty_prm(application) as variant:
        yield variant
