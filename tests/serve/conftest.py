"""One real application for all serve tests: two generator replicas, a PRM, a controller, LMCache, HTTP."""

import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.ray_environment  # noqa: F401  # before Ray is imported
from tests.serve.application import Application


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a Ray of their own go first: afterwards this process is the application's driver."""
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        for category in ("ResourceWarning", "FutureWarning", "DeprecationWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"default::{category}"))  # Ray's own
        item.add_marker(pytest.mark.timeout(900))
    others = [item for item in items if item not in ours]
    items[:] = [*others, *sorted(ours, key=lambda item: item.path.name != "test_node_cache.py")]


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    import ray
    from ray import serve

    from deployments.app import build
    from deployments.config import AppConfig

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.pop("BANYAN_API_KEYS", None)
    key, other_key = secrets.token_urlsafe(), secrets.token_urlsafe()
    keys_file = tmp_path_factory.mktemp("keys") / "keys"
    keys_file.write_text(f"{key}  # the tests\n{other_key}\n")
    started_at = time.time()
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    config = AppConfig.model_validate(
        {
            "generator": {"replicas": {"min_replicas": 2, "max_replicas": 2}},
            "http": {"canary_every_s": 0, "api_keys_file": str(keys_file)},
            "controller": {"limits": {"seconds": 300}},
        }
    )
    serve.run(build(config), name=Application.NAME)
    application = Application(f"http://127.0.0.1:{port}", key, config, started_at, other_key)
    try:
        yield application
    finally:
        application.http.close()
        serve.shutdown()
        ray.shutdown()


@pytest.fixture
def idle(application: Application) -> Iterator[Application]:
    """The application, idle and whole before and after the test."""
    application.wait_until_whole()
    yield application
    application.wait_until_whole()
