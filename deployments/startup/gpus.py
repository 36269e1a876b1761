"""The GPUs of the cluster, and their memory."""

from collections.abc import Callable
from typing import NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ANSWER_S = 120.0
"""Longest wait for the nodes to say how much memory their GPUs have. Each of them imports torch for it."""


class GpuError(ValueError):
    """A node did not say how much memory its GPUs have. The message names it."""


class GpuNode(NamedTuple):
    """A node with GPUs."""

    name: str
    """Its address."""
    gpus: int
    """Number of GPUs that Ray may give away."""
    memory_bytes: int
    """Memory of the smallest of them."""
    resources: frozenset[str] = frozenset()
    """Names of all that Ray may give away there."""


def memory_of_gpus() -> list[int]:
    """Bytes of each GPU that this process sees. This is the memory that vLLM's ``gpu_memory_utilization`` is a share
    of; what NVML or a table of models gives is more by what the driver keeps, and wrong for a part of a GPU (MIG)."""
    import torch

    return [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]


def gpu_nodes(memory: Callable[[], list[int]] = memory_of_gpus) -> list[GpuNode]:
    """The nodes of the cluster that have GPUs; a task on each of them asks for their memory. Call it in a process of
    the cluster.

    Raises:
        GpuError: a node does not answer, or finds fewer GPUs than Ray counts there.
    """
    # Ray leaves all GPUs visible to a task that reserves none. The process ends with it, and CUDA's context with that.
    ask = ray.remote(num_cpus=0, max_calls=1)(memory)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
    answers = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in nodes
    ]
    if answers:
        ray.wait(answers, num_returns=len(answers), timeout=ANSWER_S)
    found = []
    for node, answer in zip(nodes, answers, strict=True):
        address, count = node["NodeManagerAddress"], int(node["Resources"]["GPU"])
        try:
            sizes = ray.get(answer, timeout=0)
        except (GetTimeoutError, RayError) as error:
            reason = f"no answer within {ANSWER_S:g} s" if isinstance(error, GetTimeoutError) else str(error)
            raise GpuError(f"node {address}: the memory of its GPUs is not known: {reason}") from error
        if len(sizes) < count:
            raise GpuError(
                f"node {address}: Ray counts {count} GPUs there, and torch finds {len(sizes)}: the driver, or "
                "CUDA_VISIBLE_DEVICES, hides the others"
            )
        found.append(GpuNode(address, count, min(sizes[:count]), frozenset(node["Resources"])))
    return found
