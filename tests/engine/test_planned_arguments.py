"""Planned engines: vLLM's arguments agree with what Ray reserves. No engine is started."""

from pathlib import Path

import pytest

from cluster.launch.config_file import app_config, read_config
from cluster.manifests.__main__ import CONFIGS
from deployments.engines import arguments
from deployments.engines.arguments import engine_args
from deployments.engines.scoring import scoring_args
from deployments.engines.settings import GPU_SHARE
from deployments.startup.gpus import GpuNode
from deployments.startup.placement import PlacementError, placed
from tests.unit.manifests.published import as_on_a_gpu

FILES = [Path(__file__).parents[2] / "serve_config.yaml", *sorted(CONFIGS.glob("*.yaml"))]


@pytest.mark.parametrize("gib", [22.5, 79])
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_vllm_is_told_what_ray_is_told(
    file: Path, count: int, gib: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_a_gpu(tmp_path, monkeypatch)
    monkeypatch.setattr(arguments.current_platform, "is_cpu", lambda: False)
    try:
        config = placed(app_config(read_config(file)), [GpuNode("here", count, int(gib * (1 << 30)))])
    except PlacementError:  # tests/unit/test_placement.py says which
        return
    args = [engine_args(config.generator, runner="generate"), *map(scoring_args, config.prm.engines.values())]
    for told, engine in zip(args, config.engines.values(), strict=True):
        reserved = engine.replicas.num_gpus or 0
        assert reserved > 0
        assert told.kv_cache_memory_bytes == engine.kv_cache_memory_bytes
        assert (told.kv_cache_memory_bytes is None) is (reserved >= 1)
        assert told.gpu_memory_utilization == (reserved if reserved < 1 else GPU_SHARE)
        assert told.tensor_parallel_size == max(1, reserved)
