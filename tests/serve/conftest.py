"""One real application for all serve tests: two generator replicas, a PRM, a controller, LMCache, HTTP."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before Ray starts: as `make run` sets it.
os.environ.setdefault("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from tests.serve.application import Application


@pytest.fixture(scope="session")
def application() -> Iterator[Application]:
    import ray
    from ray import serve

    from deployments.app import build
    from deployments.config import AppConfig

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = Path(__file__).with_name("no_keys")
    assert not keys.exists(), "the shared application runs without keys"
    os.environ.pop("BANYAN_API_KEYS", None)
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    config = AppConfig.model_validate(
        {
            "generator": {"replicas": {"min_replicas": 2, "max_replicas": 2}},
            "http": {"canary_every_s": 0},
            "controller": {"limits": {"seconds": 300}},
        }
    )
    serve.run(build(config), name=Application.NAME)
    try:
        yield Application(f"http://127.0.0.1:{port}", config)
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture
def idle(application: Application) -> Iterator[Application]:
    """The application, idle and whole before and after the test."""
    application.wait_until_whole()
    yield application
    application.wait_until_whole()
