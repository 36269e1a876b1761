"""Adapters that are merged into a model's weights while they are loaded. The families' tests start an engine with one
(``math_psa``)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from deployments.engines.rewards.lora import Adapter
from tests.engine.adapters import ALPHA, RANK, add_by_hand, save_adapter

NAMES = ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight")
FIRST = NAMES[0].removesuffix(".weight")


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    shapes = ((16, 8), (8, 24), (8,))
    return {name: torch.randn(shape) for name, shape in zip(NAMES, shapes, strict=True)}


def merged(adapter: Path, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(Adapter(str(adapter)).merged(iter(weights.items())))


def test_an_adapter_changes_its_weights_and_no_others(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    head = {"score.weight": torch.randn(2, 8)}
    save_adapter(tmp_path / "adapter", {name: weights[name] for name in NAMES[:2]}, whole=head)
    found = merged(tmp_path / "adapter", weights)
    assert torch.equal(found.pop("score.weight"), head["score.weight"])
    expected = {name: weight.clone() for name, weight in weights.items()}
    add_by_hand(expected, tmp_path / "adapter")
    assert not torch.equal(expected[NAMES[0]], weights[NAMES[0]])
    torch.testing.assert_close(found, expected)


def test_a_weight_that_the_adapter_has_as_a_whole_replaces_the_models(tmp_path: Path) -> None:
    own, saved = torch.zeros(2, 8, dtype=torch.bfloat16), torch.randn(2, 8)
    save_adapter(tmp_path / "adapter", {}, whole={"score.weight": saved})
    found = merged(tmp_path / "adapter", {"score.weight": own})
    torch.testing.assert_close(found, {"score.weight": saved.to(torch.bfloat16)})


def test_a_rank_stabilized_adapter_is_divided_by_the_root_of_its_rank(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    save_adapter(tmp_path / "adapter", {NAMES[0]: weights[NAMES[0]]}, use_rslora=True)
    factors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    down, up = (factors[f"base_model.model.{FIRST}.lora_{letter}.weight"] for letter in "AB")
    found = merged(tmp_path / "adapter", weights)
    torch.testing.assert_close(found[NAMES[0]], weights[NAMES[0]] + ALPHA / RANK**0.5 * up @ down)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    save_adapter(tmp_path / "adapter", {NAMES[0]: weights[NAMES[0]]})
    del weights[NAMES[0]]
    with pytest.raises(ValueError, match=rf"changes weights that the model does not have: {FIRST}\.lora_A"):
        merged(tmp_path / "adapter", weights)


@pytest.mark.parametrize(
    "other",
    [{"peft_type": "IA3"}, {"bias": "all"}, {"use_dora": True}, {"alpha_pattern": {"q_proj": 3}}],
    ids=lambda other: next(iter(other)),
)
def test_an_adapter_of_another_kind_is_refused_with_what_is_different(tmp_path: Path, other: dict[str, Any]) -> None:
    save_adapter(tmp_path / "adapter", {}, **other)
    [(name, value)] = other.items()
    with pytest.raises(ValueError, match="cannot be merged") as refused:
        Adapter(str(tmp_path / "adapter"))
    assert (name if name in ("use_dora", "alpha_pattern") else repr(value)) in str(refused.value)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())[name] == value


@pytest.mark.parametrize(("half", "other"), ["AB", "BA"])
def test_half_a_pair_is_refused(tmp_path: Path, weights: dict[str, torch.Tensor], half: str, other: str) -> None:
    save_adapter(tmp_path / "adapter", {name: weights[name] for name in NAMES[:2]})
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    lost = f"{FIRST}.lora_{half}.weight"
    save_file({name: part for name, part in load_file(file).items() if not name.endswith(lost)}, file)
    with pytest.raises(ValueError, match=rf"has {FIRST}\.lora_{other}\.weight without {lost}"):
        Adapter(str(tmp_path / "adapter"))


def test_factors_of_different_ranks_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    for number, (name, told) in enumerate(
        {f"{FIRST}.lora_B.weight": "the ranks of", f"{FIRST}.lora_magnitude_vector": "it has"}.items()
    ):
        save_adapter(tmp_path / str(number), {NAMES[0]: torch.ones(16, 8)})
        file = tmp_path / str(number) / "adapter_model.safetensors"
        save_file({**load_file(file), f"base_model.model.{name}": torch.ones(16, RANK + 1)}, file)
        with pytest.raises(ValueError, match=told):
            Adapter(str(tmp_path / str(number)))
