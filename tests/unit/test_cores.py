"""Number of threads of an engine on a CPU."""

import os
from pathlib import Path

import pytest

from deployments.engines import cores
from deployments.engines.cores import SMALL_MODEL_BYTES, cpu_threads, is_small_model, usable_cores
from deployments.engines.settings import EngineSettings, GeneratorSettings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for shard in ("model-1.safetensors", "model-2.safetensors"):
        with (tmp_path / shard).open("wb") as file:
            file.truncate(SMALL_MODEL_BYTES // 2)
    return tmp_path


def test_the_embedded_models_have_one_thread() -> None:
    assert cpu_threads(GeneratorSettings()) == 1
    assert cpu_threads(GeneratorSettings(model="embedded:prm")) == 1


def test_a_larger_model_has_all_cores(model: Path) -> None:
    assert not is_small_model(str(model))
    assert cpu_threads(EngineSettings(model=str(model))) == usable_cores()
    (model / "model-2.safetensors").unlink()
    assert cpu_threads(EngineSettings(model=str(model))) == 1


def test_a_model_on_a_hub_counts_as_large() -> None:
    assert not is_small_model("Qwen/Qwen2.5-Math-7B-Instruct")


def test_a_configured_number_is_used(model: Path) -> None:
    assert cpu_threads(EngineSettings(model=str(model), cpu_threads=3)) == 3


@pytest.mark.parametrize(
    ("quota", "expected"), [("150000 100000", 1), ("50000 100000", 1), ("200000 100000", 2), ("max 100000", 8)]
)
def test_the_cpu_quota_of_a_container_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(cores, "CGROUP_QUOTA", tmp_path / "cpu.max")
    assert usable_cores() == 8
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores() == expected
