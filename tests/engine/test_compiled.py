"""Engines on a CPU run compiled code, and compile it once."""

from pathlib import Path

import pytest

from deployments.engines.arguments import engine_args
from deployments.engines.environment import can_compile, engine_environment
from deployments.engines.generation import GenerationEngine
from deployments.engines.rewards.implicit import ImplicitSettings
from deployments.engines.scoring import ScoringEngine
from deployments.engines.settings import GeneratorSettings
from search.ports import ScoreItem, ScoreRequest
from tests.engine.conftest import quiet, stop
from tests.engine.reward_models import implicit

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own compiler, which the other tests here do without."""
    monkeypatch.delenv("CXX")
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")


async def started_and_stopped(settings: GeneratorSettings) -> None:
    engine = GenerationEngine(settings)
    with quiet():
        await engine.start()
    assert await engine.canary() > 0
    await stop(engine)


@pytest.mark.long
async def test_the_second_start_of_an_engine_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, generator_model: str
) -> None:
    if not can_compile():
        pytest.skip("there is no C++ compiler, or no headers of Python")
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    settings = GeneratorSettings(model=generator_model, max_model_len=256)
    await started_and_stopped(settings)
    code = [file for file in (tmp_path / "torch_compile_cache").rglob("model") if file.is_file()]
    assert len(code) == 1
    written = code[0].stat().st_mtime_ns, code[0].stat().st_ino
    await started_and_stopped(settings)
    # An engine that compiles would write its code again.
    assert (code[0].stat().st_mtime_ns, code[0].stat().st_ino) == written


@pytest.mark.long
async def test_a_model_and_its_reference_are_compiled_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not can_compile():
        pytest.skip("there is no C++ compiler, or no headers of Python")
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    model = implicit(tmp_path / "model")
    settings = ImplicitSettings(model=str(tmp_path / "model"), **model.settings)
    question, steps = "Start with 1.", ("1 + 1 = 2\n\n", "2 + 2 = 4\n\n")
    expected = model.formula(question, steps)
    for start in ("compiled", "loaded from the cache"):
        engine = ScoringEngine(settings)
        with quiet():
            await engine.start()
        [rewards] = await engine.score(ScoreRequest("search", question, (ScoreItem(steps, 2),), 600.0))
        await stop(engine)
        assert rewards == pytest.approx(expected, abs=1e-4), start
    assert len([file for file in (tmp_path / "cache").rglob("model") if file.is_file()]) == 1


async def test_without_a_compiler_an_engine_runs_uncompiled(
    monkeypatch: pytest.MonkeyPatch, generator_model: str
) -> None:
    settings = GeneratorSettings(model=generator_model)
    assert engine_args(settings, runner="generate").enforce_eager is not can_compile()
    assert can_compile() is ("TORCH_COMPILE_DISABLE" not in engine_environment(settings))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert engine_args(settings, runner="generate").enforce_eager is True
    # Log-probabilities would be compiled even then: all other tests here run such engines, some of them with
    # log-probabilities.
    assert engine_environment(settings)["TORCH_COMPILE_DISABLE"] == "1"
    eager = GeneratorSettings(model=generator_model, engine_args={"enforce_eager": True})
    monkeypatch.delenv("CXX")
    assert engine_args(eager, runner="generate").enforce_eager is True
