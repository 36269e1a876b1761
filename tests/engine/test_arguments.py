"""Arguments for vLLM on a GPU, as far as they can be checked without one: no engine is started."""

from pathlib import Path

import pytest
from vllm import AsyncEngineArgs
from vllm.utils.network_utils import get_open_port

from deployments.engines import arguments, lifecycle
from deployments.engines.arguments import engine_args
from deployments.engines.errors import EngineStartError
from deployments.engines.settings import GPU_SHARE, GeneratorSettings, ReplicaSettings
from deployments.engines.sockets import SocketDirectory


@pytest.mark.parametrize("num_gpus", [0.5, 0.251])
def test_an_engine_on_a_part_of_a_device_is_limited_to_it(
    monkeypatch: pytest.MonkeyPatch, generator_model: str, num_gpus: float
) -> None:
    monkeypatch.setattr(arguments.current_platform, "is_cpu", lambda: False)
    settings = GeneratorSettings(
        model=generator_model, kv_cache_memory_bytes=1 << 30, replicas=ReplicaSettings(num_gpus=num_gpus)
    )
    args = engine_args(settings, runner="generate")
    assert args.gpu_memory_utilization == num_gpus
    assert args.kv_cache_memory_bytes == 1 << 30
    own = settings.model_copy(update={"engine_args": {"gpu_memory_utilization": 0.4}})
    assert engine_args(own, runner="generate").gpu_memory_utilization == 0.4


@pytest.mark.parametrize("num_gpus", [1, 2, None])
def test_an_engine_on_whole_devices_has_vllms_default(
    monkeypatch: pytest.MonkeyPatch, generator_model: str, num_gpus: int | None
) -> None:
    monkeypatch.setattr(arguments.current_platform, "is_cpu", lambda: False)
    settings = GeneratorSettings(model=generator_model, replicas=ReplicaSettings(num_gpus=num_gpus))
    found = engine_args(settings, runner="generate").gpu_memory_utilization
    assert found == GPU_SHARE == AsyncEngineArgs(model=generator_model).gpu_memory_utilization


def test_the_cache_connector_has_no_metrics_among_vllms_own() -> None:
    """LMCache's has a histogram that Ray refuses, so that no engine would start with ``engine_metrics``."""
    from kvstore.connector.lmcache_connector import LMCacheMPConnector

    assert LMCacheMPConnector.build_prom_metrics(None, {}, [], {}) is None


def test_arguments_are_read_by_vllms_own_types(generator_model: str) -> None:
    """YAML 1.1 reads ``8e3`` as a text."""
    given = {
        "max_num_batched_tokens": "8e3",
        "gpu_memory_utilization": "9e-1",
        "download_dir": "1e5",
        "enforce_eager": True,
    }
    args = engine_args(GeneratorSettings(model=generator_model, engine_args=given), runner="generate")
    assert {name: getattr(args, name) for name in given} == given | {
        "max_num_batched_tokens": 8000,
        "gpu_memory_utilization": 0.9,
    }


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype", "load_format"])
def test_a_boolean_for_another_argument_is_refused(generator_model: str, name: str) -> None:
    """YAML 1.1 reads ``on`` as one, and vLLM takes it for 1."""
    settings = GeneratorSettings(model=generator_model, engine_args={name: True})
    with pytest.raises(EngineStartError, match=f"engine_args: {name} may not be a boolean; .* in quotes"):
        engine_args(settings, runner="generate")


def test_an_engine_starts_where_kubernetes_has_a_service_named_vllm(
    monkeypatch: pytest.MonkeyPatch, generator_model: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_PORT", "tcp://10.96.7.31:8000")
    monkeypatch.setattr(lifecycle, "template_of", lambda settings: None)
    monkeypatch.setattr(lifecycle.AsyncLLM, "from_engine_args", lambda *_, **__: get_open_port())
    settings = GeneratorSettings(model=generator_model)
    sockets = SocketDirectory(tmp_path)
    try:
        assert lifecycle._start(settings, engine_args(settings, runner="generate"), (), sockets) > 0  # type: ignore[operator]
    finally:
        sockets.remove()
