"""Configurations of published pairs: Serve reads them, the application is built from them, and the models fit."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.launch.config_file import app_config, read_config
from cluster.manifests.__main__ import CONFIGS
from deployments.app import build
from deployments.config import AppConfig
from deployments.engines.settings import EngineSettings
from deployments.startup import memory_plan
from deployments.startup.gpus import GpuNode
from deployments.startup.placement import placed
from kvstore.memory.device_memory import split
from tests.unit.manifests.published import DEVICE_GIB, GIB, MODELS, as_on_a_gpu, write_hub_cache

NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
WORKING = int(1.5 * GIB)
"""Memory of an engine beside weights and KV, as `banyan plan --working` assumes it."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache on this machine, with what the models' configurations say of their contexts."""
    write_hub_cache(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


def engines(config: AppConfig) -> dict[str, EngineSettings]:
    assert isinstance(config.prm, EngineSettings)
    return {"generator": config.generator, "prm": config.prm}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("hub")
def test_the_application_can_be_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = app_config(read_config(CONFIGS / f"{name}.yaml"))
    build(config)
    for engine in engines(config).values():
        assert engine.model in MODELS or engine.model.startswith("embedded:")


@pytest.mark.usefixtures("hub")
def test_a_context_that_a_published_model_does_not_have_is_refused() -> None:
    given: dict[str, Any] = yaml.safe_load((CONFIGS / "qwen3-8b_skywork-7b.yaml").read_text())
    args = given["applications"][0]["args"]
    args["prm"]["max_model_len"] = 8192
    with pytest.raises(ValueError, match=r"prm\.max_model_len: at most 4096"):
        build(AppConfig.model_validate(args))


@pytest.mark.parametrize("name", DEVICE_GIB)
def test_the_models_fit_the_devices_of_the_comment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(tmp_path, monkeypatch)
    config = app_config(read_config(CONFIGS / f"{name}.yaml"))
    gpus = 1 if name == "one-24gb-gpu" else sum(engine.gpus for engine in engines(config).values())
    found = placed(config, [GpuNode("here", gpus, int(DEVICE_GIB[name] * GIB))])
    assert sum(engine.replicas.num_gpus or 0 for engine in engines(found).values()) == pytest.approx(gpus, abs=0.05)
    assert found.generator.replicas.num_gpus


def test_the_shares_of_one_gpu_are_as_the_planner_splits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(tmp_path, monkeypatch)
    config = app_config(read_config(CONFIGS / "one-24gb-gpu.yaml"))
    roles = [memory_plan.role_of(part, engine, WORKING) for part, engine in engines(config).items()]
    for share in split(roles, int(DEVICE_GIB["one-24gb-gpu"] * GIB)):
        engine = engines(config)[share.role.name]
        assert engine.kv_cache_memory_bytes == pytest.approx(share.kv_bytes, rel=0.02)
        assert share.device <= (engine.replicas.num_gpus or 0)


def test_every_pair_has_a_device() -> None:
    assert {*DEVICE_GIB, "embedded-cpu"} == {*NAMES}
