"""GPUs of a cluster, asked for by tasks on their nodes."""

import pytest
import ray

from deployments.startup import gpus
from deployments.startup.gpus import GpuError, gpu_nodes


@pytest.mark.usefixtures("application")
def test_tasks_tell_the_memory_of_a_nodes_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_nodes() == []  # without a GPU no task is started
    [node] = ray.nodes()
    with_gpu = [node | {"Resources": node["Resources"] | {"GPU": 1.0}}]
    monkeypatch.setattr(gpus.ray, "nodes", lambda: with_gpu)
    [found] = gpu_nodes(lambda: [24 << 30, 8 << 30])
    assert (found.name, found.gpus, found.memory_bytes) == (node["NodeManagerAddress"], 1, 24 << 30)
    with pytest.raises(GpuError, match="Ray counts 1 GPUs there, and torch finds 0"):
        gpu_nodes()
