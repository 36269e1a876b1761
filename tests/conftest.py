"""Settings that all tests share. They want the CPU: with a GPU on the machine they leave it alone."""

import gc
import os
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is imported and Ray counts GPUs

import pytest
from hypothesis import settings

from deployments.engines.vllm_build import runs_on_cpu

# The duration of an example depends on the machine, not on the code.
settings.register_profile("banyan", deadline=None)
settings.load_profile("banyan")

UNIT = Path(__file__).with_name("unit")
WANTS_CPU = "starts engines on a CPU, and vLLM's build for GPUs is installed: make test BANYAN_HARDWARE=cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if runs_on_cpu():
        return
    for item in items:
        if UNIT not in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=WANTS_CPU))


def pytest_collection_finish() -> None:
    """The libraries and tests in memory stay to the end: a full collection need not look through them each time."""
    gc.collect()
    gc.freeze()
