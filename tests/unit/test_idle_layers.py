"""Idle layers and neurons do not change a model's output."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

from benchmarks.idle_layers import with_idle_layers
from deployments.engines.settings import EMBEDDED_MODELS, EMBEDDED_PRM, GeneratorSettings


def test_a_heavy_generator_writes_what_the_embedded_one_writes(tmp_path: Path) -> None:
    light, heavy = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (GeneratorSettings().model_path, with_idle_layers(tmp_path, 9))
    )
    assert len(heavy.model.layers) == 9
    tokens = torch.randint(4, 260, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(heavy(tokens).logits, light(tokens).logits)


def test_a_generator_with_idle_neurons_writes_what_the_embedded_one_writes(tmp_path: Path) -> None:
    light, heavy = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (GeneratorSettings().model_path, with_idle_layers(tmp_path, 6, 1024))
    )
    assert heavy.model.layers[5].mlp.down_proj.weight.shape == (128, 1024)
    tokens = torch.randint(4, 260, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(heavy(tokens).logits, light(tokens).logits, rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match="512 neurons"):
        with_idle_layers(tmp_path, 6, 700)


def test_a_heavy_reward_model_gives_the_states_of_the_embedded_one(tmp_path: Path) -> None:
    # Only its base is compared: the head after the last layer is the same, and transformers does not know its
    # architecture.
    light, heavy = (
        AutoModel.from_pretrained(path, dtype=torch.float32)
        for path in (EMBEDDED_MODELS / "prm", with_idle_layers(tmp_path, neurons=2048, of=EMBEDDED_PRM))
    )
    assert heavy.layers[6].mlp.gate_proj.weight.shape == (2048, 128)
    tokens = torch.randint(4, 260, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        read = heavy(tokens).last_hidden_state
        torch.testing.assert_close(read, light(tokens).last_hidden_state, rtol=1e-5, atol=1e-4)
    assert read.abs().max() > 1


def test_fewer_layers_than_the_model_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4 layers"):
        with_idle_layers(tmp_path, 3)
