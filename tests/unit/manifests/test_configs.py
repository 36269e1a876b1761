"""Configurations of published pairs: Serve reads them, the application is built from them, and the models fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.launch.config_file import app_config, read_config
from cluster.manifests.__main__ import CONFIGS
from deployments.app import build
from deployments.config import AppConfig
from deployments.engines.settings import EngineSettings
from kvstore.memory.planner import TOKENS, Role, split
from tests.unit.manifests.published import DEVICE_GIB, GIB, MODELS

NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
WORKING = int(1.5 * GIB)
"""Memory of an engine beside weights and KV, as `banyan plan --working` assumes it."""
VLLMS_SHARE = 0.9


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache on this machine, with what the models' configurations say of their contexts."""
    for name, model in MODELS.items():
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        (folder / "snapshots" / "abc").mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("abc")
        config = {"max_position_embeddings": model.context}
        (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(config))
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
def test_the_models_fit_the_devices(name: str) -> None:
    config = app_config(read_config(CONFIGS / f"{name}.yaml"))
    device = int(DEVICE_GIB[name] * GIB)
    roles = {}
    for part, engine in engines(config).items():
        devices = engine.engine_args.get("tensor_parallel_size", 1)
        assert engine.replicas.num_gpus in (devices, engine.replicas.num_gpus % 1)
        model = MODELS[engine.model]
        geometry = model.geometry(devices)
        roles[part] = Role(part, model.weight_bytes(devices), WORKING, geometry, engine.max_model_len, TOKENS[part])
        kv = engine.kv_cache_memory_bytes
        granted = engine.engine_args.get("gpu_memory_utilization", VLLMS_SHARE) * device
        left = granted - roles[part].weight_bytes - WORKING
        assert left >= (kv or 0)
        assert (kv or left) >= geometry.blocks_to_start(engine.max_model_len) * geometry.bytes_per_block
    if config.generator.replicas.num_gpus < 1:
        for share in split(list(roles.values()), device):
            engine = engines(config)[share.role.name]
            assert engine.kv_cache_memory_bytes == pytest.approx(share.kv_bytes, rel=0.02)
            assert share.device <= engine.replicas.num_gpus


def test_every_pair_has_a_device() -> None:
    assert {*DEVICE_GIB, "embedded-cpu"} == {*NAMES}
