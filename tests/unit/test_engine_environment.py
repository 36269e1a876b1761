"""The variables of an engine's process on a GPU, and what differs there before it begins."""

import pytest

from deployments.engines import environment, template
from deployments.engines.environment import engine_environment, shared_memory_bytes
from deployments.engines.settings import GeneratorSettings

SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (environment, template):
        monkeypatch.setattr(module, "runs_on_cpu", lambda: False)
    monkeypatch.delenv(SAMPLER, raising=False)


def test_flashinfers_sampler_is_off_unless_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_environment(GeneratorSettings())[SAMPLER] == "0"
    monkeypatch.setenv(SAMPLER, "1")
    assert engine_environment(GeneratorSettings())[SAMPLER] == "1"


def test_only_an_exact_engine_is_batch_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "VLLM_BATCH_INVARIANT"
    assert name not in engine_environment(GeneratorSettings())
    assert engine_environment(GeneratorSettings(exact=True))[name] == "1"
    monkeypatch.setattr(environment, "runs_on_cpu", lambda: True)
    assert name not in engine_environment(GeneratorSettings(exact=True))  # it is made of a GPU's kernels


def test_nothing_of_a_cpus_environment_is_left() -> None:
    variables = engine_environment(GeneratorSettings())
    left = ("OMP_", "VLLM_CPU_", "VLLM_ENABLE_V1_MULTIPROCESSING", "TORCH_COMPILE_DISABLE", "LD_PRELOAD")
    assert not [name for name in variables if name.startswith(left)]
    assert shared_memory_bytes(GeneratorSettings()) == 0


def test_no_engine_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process could not use the CUDA of the one that forked it."""
    monkeypatch.setattr(template, "attach", lambda *_: pytest.fail("a template was started"))
    assert template.template_of(GeneratorSettings()) is None
