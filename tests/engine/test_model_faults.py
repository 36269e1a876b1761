"""What is wrong with a model is told at its start: before an engine begins, as far as its files tell."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from deployments.engines import lifecycle
from deployments.engines.errors import EngineStartError
from deployments.engines.generation import GenerationEngine
from deployments.engines.rewards.label_presets import LabelTurnsSettings
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.rewards.token_class import TokenClassSettings
from deployments.engines.scoring import ScoringEngine, odd_rewards
from deployments.engines.settings import GeneratorSettings
from search.ports import ScoreItem, ScoreRequest
from tests.engine.conftest import quiet, stop

pytestmark = pytest.mark.asyncio(loop_scope="session")

Weights = dict[str, torch.Tensor]


def changed(source: str, directory: Path, change: Callable[[Weights], Weights]) -> str:
    """A copy of a model with other weights."""
    shutil.copytree(source, directory)
    file = directory / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})
    return str(directory)


def without(name: str) -> Callable[[Weights], Weights]:
    return lambda weights: {each: part for each, part in weights.items() if each != name}


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any) -> None:
        raise AssertionError("an engine began")

    monkeypatch.setattr(lifecycle, "_start", start)


@pytest.mark.usefixtures("no_engine")
async def test_a_generator_that_lacks_a_weight_starts_no_engine(tmp_path: Path, generator_model: str) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    model = changed(generator_model, tmp_path / "model", without(name))
    with pytest.raises(EngineStartError, match=f"missing: {name}"):
        await GenerationEngine(GeneratorSettings(model=model)).start()


@pytest.mark.usefixtures("no_engine")
async def test_a_reward_model_that_lacks_a_weight_starts_no_engine(tmp_path: Path, prm_model: str) -> None:
    model = changed(prm_model, tmp_path / "model", without("score.2.weight"))
    with pytest.raises(EngineStartError, match=r"missing: score\.2\.weight"):
        await ScoringEngine(StepHeadSettings(model=model)).start()
    with pytest.raises(EngineStartError, match=r"missing: score\.weight"):
        await ScoringEngine(TokenClassSettings(model=model)).start()


async def test_what_the_files_do_not_tell_the_loaded_engine_does(
    tmp_path: Path, prm_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a model that transformers does not know. The weight is a third of one of vLLM's."""
    monkeypatch.setattr(lifecycle, "check_weights", lambda _: [])
    model = changed(prm_model, tmp_path / "model", without("model.layers.1.self_attn.q_proj.weight"))
    with quiet(), pytest.raises(EngineStartError, match=r"lacks weights: model\.layers\.1\.self_attn\.qkv_proj"):
        await ScoringEngine(StepHeadSettings(model=model)).start()


async def test_weights_without_use_and_odd_rewards_are_told(
    tmp_path: Path, prm_model: str, caplog: pytest.LogCaptureFixture
) -> None:
    def of_nothing(weights: Weights) -> Weights:
        unused = {"model.layers.77.mlp.up_proj.weight": torch.ones(2, 2), "unheard.of": torch.ones(1)}
        return weights | unused | {"score.2.bias": torch.full((2,), torch.nan)}

    engine = ScoringEngine(StepHeadSettings(model=changed(prm_model, tmp_path / "model", of_nothing)))
    with quiet():
        await engine.start()
    unused, odd = engine.notes
    await stop(engine)
    assert unused.endswith("weights without use: model.layers.77.mlp.up_proj.weight, unheard.of")
    assert "the reward nan" in odd
    assert all(note.partition(": ")[2] in caplog.text for note in (unused, odd))


async def test_a_tied_output_layer_gives_the_rewards_of_one_that_is_stored(
    tmp_path: Path, generator_model: str
) -> None:
    """The embedded generator's files have none: it is the embedding, which a start must not leave as the memory was."""

    def with_output_layer(weights: Weights) -> Weights:
        return weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}

    stored = Path(changed(generator_model, tmp_path / "model", with_output_layer))
    config = json.loads((stored / "config.json").read_text())
    (stored / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    item = ScoreItem(("12 + 30 = 42\n\n", "42 + 5 = 48\n\n"), unscored=2)
    rewards = []
    for model in (generator_model, str(stored)):
        engine = ScoringEngine(LabelTurnsSettings(model=model))
        with quiet():
            await engine.start()
        rewards += await engine.score(ScoreRequest("tied", "Start with 12. Add 30. Add 5.", (item,), 60.0))
        await stop(engine)
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-6)
    assert len({*rewards[0]}) == 2


async def test_nothing_is_odd_about_the_embedded_reward_model(shared_scoring: ScoringEngine) -> None:
    assert shared_scoring.notes == []


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (0.9, 0.1, None),
        (0.1, 0.9, None),
        (1.0, 0.3, None),
        (0.5, 0.5, "they are the same"),
        (0.0, 0.0, "they are the same"),
        (1.0, 0.0, "suggest that the weights were not trained"),
        (0.0, 1.0, "suggest that the weights were not trained"),
    ],
)
async def test_which_rewards_are_odd(right: float, wrong: float, told: str | None) -> None:
    found = odd_rewards(right, wrong)
    assert found is None if told is None else told in str(found)
