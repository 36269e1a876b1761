"""A checkpoint without a weight that its model needs is refused by the headers of its files; no engine is started."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.implicit import REFERENCE_PREFIX
from deployments.engines.settings import EMBEDDED_MODELS, EngineSettings, GeneratorSettings
from deployments.engines.weights import check_weights
from tests.engine.adapters import save_adapter
from tests.engine.reward_models import MODELS, SHAPE, RewardModel, qwen2

Weights = dict[str, torch.Tensor]
WHOLE = ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight")
"""Weights that all of the models have, below the prefix of a wrapper."""
HEADS = {
    "generator": ["lm_head.weight"],
    "step_head": ["score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias"],
    "label_turns": ["lm_head.weight"],
    "math_psa": ["lm_head.weight"],
    "token_class": ["score.weight", "score.bias"],
    "value_head": ["v_head.summary.weight", "v_head.summary.bias"],
    "pqm": ["v_head.summary.weight", "v_head.summary.bias"],
    "llemma_prm": ["lm_head.weight"],
    "math_minos": ["score.weight", "score.bias"],
    "reason_eval": ["score_head.weight", "score_head.bias"],
    "ensemble_head": [
        f"score.model.{layer}.{kind}" for layer in ("nn1", "nn2", "nn_out") for kind in ("weight", "bias")
    ],
    "implicit": ["lm_head.weight"],
    "outcome": ["score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias"],
    "outcome_of_a_classifier": ["score.weight"],
    "trajectory": [],
    "eurus_rm": ["regression_head.weight"],
}
"""The weights of each kind of model beside the language model's body."""


def embedded(name: str) -> Callable[[Path], RewardModel]:
    def make(directory: Path) -> RewardModel:
        shutil.copytree(EMBEDDED_MODELS / name, directory, dirs_exist_ok=True)
        return RewardModel({"family": "step_head"} if name == "prm" else {}, lambda *_: [])

    return make


MAKERS = {"generator": embedded("generator"), "step_head": embedded("prm"), **MODELS}


class Model:
    """A model of one kind, whose weights are put back after each change."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.file = directory / "model.safetensors"
        made = MAKERS[kind](directory)
        given = {"model": str(directory), "family": kind, **made.settings}
        self.settings: EngineSettings = (
            GeneratorSettings(model=str(directory)) if kind == "generator" else parse_prm(given)  # type: ignore[assignment]
        )
        self.weights = load_file(self.file)

    @property
    def prefix(self) -> str:
        return "pretrained_model." if self.kind == "pqm" else ""

    @property
    def needed(self) -> list[str]:
        tied = self.kind == "generator"  # the embedded one has no output layer of its own
        return [self.prefix + WHOLE[1], *(WHOLE if tied else HEADS[self.kind])]

    @property
    def needed_together(self) -> list[list[str]]:
        """Needed weights, in groups that one error message has room to name: one of the body, those of the head."""
        body, *head = self.needed
        return [names for names in ([body], head) if names]

    def refusal(self, changed: Weights) -> str:
        save_file({name: part.contiguous() for name, part in changed.items()}, self.file, {"format": "pt"})
        with pytest.raises(EngineStartError) as refused:
            check_weights(self.settings)
        save_file(self.weights, self.file, {"format": "pt"})
        return str(refused.value)

    def without(self, *names: str) -> Weights:
        return {each: part for each, part in self.weights.items() if each not in names}


@pytest.fixture(scope="module", params=MAKERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.manual_seed(3)
    return Model(request.param, tmp_path_factory.mktemp(request.param))


def own_name(model: Model, name: str) -> str:
    """The name in messages: a wrapper's prefix is left out."""
    return name.removeprefix(model.prefix)


def test_a_whole_checkpoint_is_accepted(model: Model) -> None:
    unused = check_weights(model.settings)
    assert all("reg_model" in name for name in unused)  # there for training only


def test_every_missing_weight_is_named(model: Model) -> None:
    for names in model.needed_together:
        message = model.refusal(model.without(*names))
        assert [name for name in names if own_name(model, name) not in message] == []


def test_a_renamed_weight_is_named_with_its_other_name(model: Model) -> None:
    for name in model.needed:
        other = name.replace("weight", "wieght").replace("bias", "bais")
        message = model.refusal({**model.without(name), other: model.weights[name]})
        assert f"missing: {own_name(model, name)}" in message
        assert own_name(model, other) in message


def test_every_weight_of_another_shape_is_named_with_both_shapes(model: Model) -> None:
    for names in model.needed_together:
        parts = {name: model.weights[name] for name in names}
        cut = {
            name: part[..., :-1] if part.shape[-1] > 1 else part.repeat(2, *[1] * (part.ndim - 1))
            for name, part in parts.items()
        }
        message = model.refusal({**model.weights, **cut})
        for name, part in cut.items():
            assert f"{own_name(model, name)} is {' x '.join(map(str, part.shape))}, not " in message


def test_a_weight_too_many_is_told(model: Model) -> None:
    extra = {"model.layers.9.mlp.up_proj.weight": torch.zeros(3, 3), "rotary.unheard_of": torch.zeros(2)}
    save_file({**model.weights, **extra}, model.file, {"format": "pt"})
    found = check_weights(model.settings)
    save_file(model.weights, model.file, {"format": "pt"})
    assert set(found) >= set(extra)


def saved(directory: Path, model: Any) -> GeneratorSettings:
    model.save_pretrained(directory)
    return GeneratorSettings(model=str(directory))


def rewritten(directory: Path, change: Callable[[Weights], Weights]) -> None:
    file = directory / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


def configured(directory: Path, **entries: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def test_an_output_layer_may_be_the_embedding(tmp_path: Path) -> None:
    tied = saved(tmp_path, LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)))
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert check_weights(tied) == []
    configured(tmp_path, tie_word_embeddings=False)
    with pytest.raises(EngineStartError, match=r"missing: lm_head\.weight"):
        check_weights(tied)
    configured(tmp_path, tie_word_embeddings=True)
    rewritten(tmp_path, lambda weights: {n: p for n, p in weights.items() if "embed" not in n} | {"x": torch.ones(1)})
    with pytest.raises(EngineStartError, match=r"missing: .*model\.embed_tokens\.weight"):
        check_weights(tied)


def test_one_expert_that_is_missing_is_noticed(tmp_path: Path) -> None:
    config = MixtralConfig(**SHAPE, num_local_experts=3, num_experts_per_tok=2)
    settings = saved(tmp_path, MixtralForCausalLM(config))
    names = list(load_file(tmp_path / "model.safetensors"))
    expert = next(name for name in names if "layers.1." in name and "experts.2." in name)
    assert check_weights(settings) == []
    rewritten(tmp_path, lambda weights: {name: part for name, part in weights.items() if name != expert})
    with pytest.raises(EngineStartError, match=r"model\.layers\.1\..*experts"):
        check_weights(settings)


def test_several_files_are_one_checkpoint_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = qwen2()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    settings = GeneratorSettings(model=str(tmp_path))
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    assert check_weights(settings) == []
    files[1].unlink()
    with pytest.raises(EngineStartError, match=f"lacks files .*: {files[1].name}"):
        check_weights(settings)


def test_files_of_torch_are_read_too(tmp_path: Path) -> None:
    model = qwen2()
    model.config.save_pretrained(tmp_path)
    weights = dict(model.state_dict())
    torch.save(weights, tmp_path / "pytorch_model.bin")
    torch.save({}, tmp_path / "training_args.bin")
    settings = GeneratorSettings(model=str(tmp_path))
    configured(tmp_path, architectures=["Qwen2ForCausalLM"])
    assert check_weights(settings) == []
    del weights["model.norm.weight"]
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(EngineStartError, match=r"missing: model\.norm\.weight$"):
        check_weights(settings)


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    settings = saved(tmp_path, qwen2())
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(EngineStartError, match=r"model\.safetensors cannot be read"):
        check_weights(settings)
    file.unlink()
    with pytest.raises(EngineStartError, match="there are no weights in"):
        check_weights(settings)


def test_a_quantized_model_has_weights_of_other_names_in_the_same_modules(tmp_path: Path) -> None:
    settings = saved(tmp_path, qwen2())
    configured(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128})
    parts = {"qweight": torch.ones(2, dtype=torch.int32), "scales": torch.ones(3), "qzeros": torch.ones(1)}

    def quantized(weights: Weights) -> Weights:
        linear = [name.removesuffix("weight") for name in weights if name.endswith("_proj.weight")]
        rest = {name: part for name, part in weights.items() if not name.endswith("_proj.weight")}
        return rest | {module + name: part.clone() for module in linear for name, part in parts.items()}

    rewritten(tmp_path, quantized)
    assert check_weights(settings) == []
    lost = "model.layers.1.mlp.down_proj"
    rewritten(tmp_path, lambda weights: {name: part for name, part in weights.items() if not name.startswith(lost)})
    with pytest.raises(EngineStartError, match=rf"missing: {lost}\.weight$"):
        check_weights(settings)


def test_what_cannot_be_told_before_the_engine_is_left_to_it(tmp_path: Path) -> None:
    settings = saved(tmp_path, qwen2())
    rewritten(tmp_path, lambda _: {"unheard_of": torch.ones(1)})
    with pytest.raises(EngineStartError):
        check_weights(settings)
    configured(tmp_path, architectures=["NewForCausalLM"], model_type="new")
    assert check_weights(settings) == []
    assert check_weights(settings.model_copy(update={"engine_args": {"load_format": "dummy"}})) == []
    assert check_weights(GeneratorSettings(model="some/model-that-is-not-here")) == []
    assert check_weights(GeneratorSettings(model=str(tmp_path / "none"))) == []


@pytest.mark.parametrize(
    ("family", "weight"),
    [("step_head", "score.0.weight"), ("token_class", "score.weight"), ("outcome", "score.weight"),
     ("value_head", "v_head.summary.weight"), ("eurus_rm", "regression_head.weight"), ("math_minos", "score.weight")],
)  # fmt: skip
def test_a_family_on_a_plain_language_model_names_its_head(tmp_path: Path, family: str, weight: str) -> None:
    saved(tmp_path, qwen2())
    settings = parse_prm({"family": family, "model": str(tmp_path)})
    with pytest.raises(EngineStartError, match=f"missing: {weight}"):
        check_weights(settings)  # type: ignore[arg-type]


def test_a_head_for_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    MODELS["math_minos"](tmp_path)
    with pytest.raises(EngineStartError, match=r"score\.weight is 1 x 128, not 2 x 128"):
        check_weights(parse_prm({"family": "token_class", "model": str(tmp_path)}))  # type: ignore[arg-type]


def test_the_reference_of_an_implicit_model_is_checked_too(tmp_path: Path) -> None:
    made = MODELS["implicit"](tmp_path)
    settings: Any = parse_prm({"family": "implicit", "model": str(tmp_path), **made.settings})
    rewritten(tmp_path / "reference", lambda weights: weights | {"extra": torch.ones(1)})
    assert check_weights(settings) == [f"{REFERENCE_PREFIX}extra"]
    rewritten(tmp_path / "reference", lambda weights: {n: p for n, p in weights.items() if n != WHOLE[1]})
    with pytest.raises(EngineStartError, match=rf"reference.*missing: {WHOLE[1]}"):
        check_weights(settings)


def test_a_head_in_a_file_of_its_own_is_part_of_the_checkpoint(tmp_path: Path) -> None:
    MODELS["trajectory"](tmp_path)
    settings: Any = parse_prm({"family": "trajectory", "model": str(tmp_path)})
    file = tmp_path / "reward_head.pt"
    torch.save({"weight": torch.ones(2, 128)}, file)
    with pytest.raises(EngineStartError) as refused:
        check_weights(settings)
    assert "missing: reward_head.bias; of another shape: reward_head.weight is 2 x 128, not 1 x 128" in str(
        refused.value
    )
    file.unlink()
    with pytest.raises(EngineStartError, match=r"reward_head\.pt"):
        check_weights(settings)


@pytest.mark.parametrize("half", ["lora_A", "lora_B"])
def test_half_a_pair_of_an_adapter_is_refused(tmp_path: Path, half: str) -> None:
    made = MODELS["math_psa"](tmp_path)
    settings: Any = parse_prm({"family": "math_psa", "model": str(tmp_path), **made.settings})
    assert check_weights(settings) == []
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    lost = f"model.layers.1.self_attn.q_proj.{half}.weight"
    save_file({name: part for name, part in load_file(file).items() if not name.endswith(lost)}, file)
    with pytest.raises(EngineStartError, match=rf"prm\.lora: .*without {lost}"):
        check_weights(settings)


def test_an_adapter_may_bring_the_head_and_must_fit_the_model(tmp_path: Path) -> None:
    saved(tmp_path, qwen2())
    head = {"score.weight": torch.ones(2, 128), "score.bias": torch.ones(2)}
    save_adapter(tmp_path / "adapter", {}, whole=head, modules_to_save=["score"])
    configured(tmp_path, architectures=["Qwen2ForTokenClassification"])
    given = {"family": "token_class", "model": str(tmp_path), "lora": str(tmp_path / "adapter")}
    assert check_weights(parse_prm(given)) == ["lm_head.weight"]  # type: ignore[arg-type]
    save_adapter(tmp_path / "wrong", {"model.layers.0.mlp.up_proj.weight": torch.ones(5, 128)}, whole=head)
    with pytest.raises(EngineStartError, match=r"up_proj\.weight by 5 x 128"):
        check_weights(parse_prm({**given, "lora": str(tmp_path / "wrong")}))  # type: ignore[arg-type]
    save_adapter(tmp_path / "headless", {}, modules_to_save=["score"])
    with pytest.raises(EngineStartError, match="lacks the weights of score"):
        check_weights(parse_prm({**given, "lora": str(tmp_path / "headless")}))  # type: ignore[arg-type]


def test_an_implicit_model_that_is_a_classifier_lacks_its_output_layer() -> None:
    generator, prm = (str(EMBEDDED_MODELS / part) for part in ("generator", "prm"))
    with pytest.raises(EngineStartError, match=r"missing: lm_head\.weight; without use: score"):
        check_weights(parse_prm({"family": "implicit", "model": prm, "reference": generator}))  # type: ignore[arg-type]
    with pytest.raises(EngineStartError, match=rf"{prm}' do not .*missing: lm_head\.weight"):
        check_weights(parse_prm({"family": "implicit", "model": generator, "reference": prm}))  # type: ignore[arg-type]
