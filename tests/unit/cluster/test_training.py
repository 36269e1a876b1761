"""Training a reward model: layers, head, calibration, the same weights twice or after an interruption, the card."""

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Config, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from cluster.training import fit
from cluster.training.backbone import Backbone
from cluster.training.card import Measured, ScoredSolution, measure
from cluster.training.errors import BackboneRefused, DirectoryTaken
from cluster.training.features import encode_solutions
from cluster.training.head import RewardHead, platt
from cluster.training.run import claimed, train
from cluster.training.settings import TrainingPaths, TrainingSettings
from cluster.training.solutions import Solution, SolvedProblem
from deployments.engines.rewards.card_file import read_card
from deployments.engines.settings import EMBEDDED_MODELS

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 384,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(Qwen2ForCausalLM, Qwen2Config(**SHAPE), tmp_path_factory.mktemp("qwen2"))


def saved(architecture: Any, config: Any, directory: Path) -> Path:
    torch.manual_seed(0)
    architecture(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(EMBEDDED_MODELS / "generator").save_pretrained(directory)
    return directory


def settings_for(backbone: Path, **changed: Any) -> TrainingSettings:
    return TrainingSettings(backbone=str(backbone), **{"epochs": 2, **changed})


def problems(number: int = 40) -> list[SolvedProblem]:
    """The second step is right if its sum is."""
    rng = random.Random(0)
    found = []
    for _ in range(number):
        a, b = rng.randint(2, 40), rng.randint(2, 40)
        sums = {a + b: rng.randint(1, 3), a + b + 10: rng.randint(1, 3)}
        found.append(
            SolvedProblem(
                f"Start with {a}. Add {b}. What is the result?",
                [
                    Solution((f"{a} + {b}", f"= {result}", rf"The answer is \boxed{{{result}}}"), result == a + b, n)
                    for result, n in sums.items()
                ],
            )
        )
    return found


def trained(settings: TrainingSettings, output: Path, on_progress: Any = lambda *_: None) -> Measured:
    paths = TrainingPaths(output)
    with claimed(paths, settings.model_dump(mode="json")):
        return asyncio.run(train(problems(), settings, paths, on_progress))


class TestLayers:
    ids = torch.tensor([[5, 9, 200, 7, 42]])

    def test_the_whole_equals_transformers(self, qwen2: Path) -> None:
        for layers in (0, 1, 2):
            backbone = Backbone(settings_for(qwen2, layers=layers))
            model = Qwen2ForCausalLM.from_pretrained(qwen2).model
            expected = model(input_ids=self.ids).last_hidden_state
            torch.testing.assert_close(backbone.above(backbone.below(self.ids)), expected)

    def test_new_layers_change_nothing_at_first(self, qwen2: Path) -> None:
        plain, deeper = Backbone(settings_for(qwen2)), Backbone(settings_for(qwen2, depth=4, layers=2))
        assert deeper.config.num_hidden_layers == 4
        torch.testing.assert_close(deeper.above(deeper.below(self.ids)), plain.above(plain.below(self.ids)))

    def test_a_cut_backbone_has_the_first_layers_only(self, qwen2: Path) -> None:
        cut = Backbone(settings_for(qwen2, depth=1))
        names = {name.split(".")[2] for name in cut.weights() if name.startswith("model.layers.")}
        assert (names, cut.config.num_hidden_layers) == ({"0"}, 1)

    def test_the_tag_is_read_as_the_step_delimiter(self, qwen2: Path) -> None:
        backbone = Backbone(settings_for(qwen2))
        tag, delimiter = (backbone.tokenizer.convert_tokens_to_ids(text) for text in ("<extra_0>", "ĊĊ"))
        embedding = backbone.weights()["model.embed_tokens.weight"]
        torch.testing.assert_close(embedding[tag], embedding[delimiter])

    def test_what_cannot_be_trained_is_refused_by_name(self, qwen2: Path, tmp_path: Path) -> None:
        with pytest.raises(BackboneRefused, match="only 2"):
            Backbone(settings_for(qwen2, layers=3))
        with pytest.raises(BackboneRefused, match=r"no config\.json"):
            Backbone(settings_for(tmp_path))
        GPT2Config().save_pretrained(tmp_path)
        with pytest.raises(BackboneRefused, match="'gpt2'; a head can be trained on qwen2, llama, mistral, qwen3"):
            Backbone(settings_for(tmp_path))
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1).save_pretrained(tmp_path)
        with pytest.raises(BackboneRefused, match="sliding window"):
            Backbone(settings_for(tmp_path))

    @pytest.mark.parametrize("change", ["missing", "of another shape"])
    def test_a_backbone_without_all_its_weights_is_refused(self, qwen2: Path, tmp_path: Path, change: str) -> None:
        shutil.copytree(qwen2, tmp_path, dirs_exist_ok=True)
        file, name = tmp_path / "model.safetensors", "model.layers.1.mlp.down_proj.weight"
        weights = load_file(file)
        part = weights.pop(name)
        save_file(weights if change == "missing" else weights | {name: part[:-1].contiguous()}, file, {"format": "pt"})
        with pytest.raises(BackboneRefused, match=r"lacks weights, .*: layers\.1\.mlp\.down_proj\.weight$"):
            Backbone(settings_for(tmp_path))

    def test_a_backbone_without_a_chat_template_is_refused_where_paths_are_a_chat(
        self, qwen2: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(qwen2, tmp_path, dirs_exist_ok=True)
        (tmp_path / "chat_template.jinja").unlink()
        with pytest.raises(BackboneRefused, match="cannot read a path: the model has no chat template"):
            Backbone(settings_for(tmp_path))


def test_solutions_past_the_limit_are_cut_after_a_step(qwen2: Path) -> None:
    backbone = Backbone(settings_for(qwen2))
    [problem] = problems(1)
    whole = encode_solutions(backbone, [problem], 256)
    cut = encode_solutions(backbone, [problem], whole[0].tags[1] + 1)
    assert [len(each.tags) for each in whole] == [3, 3]
    assert [each.token_ids for each in cut] == [each.token_ids[: each.tags[1] + 1] for each in whole]
    assert [each.labels[each.tags[1]] for each in whole] == [1.0, 0.0]
    assert encode_solutions(backbone, [problem], whole[0].tags[0]) == []


def test_the_exported_head_is_the_trained_one() -> None:
    torch.manual_seed(0)
    head, hidden = RewardHead("step_head", 8), 5 + 3 * torch.randn(50, 8)
    head.standardize(hidden)
    before = head(hidden).diff(dim=-1)
    head.calibrate(0.5, -0.25)
    torch.testing.assert_close(head(hidden).diff(dim=-1), 0.5 * before - 0.25)
    weights = head.exported()
    inner = torch.relu(hidden @ weights["score.0.weight"].T + weights["score.0.bias"])
    torch.testing.assert_close(inner @ weights["score.2.weight"].T + weights["score.2.bias"], head(hidden))


def test_platt_finds_scale_and_offset() -> None:
    differences = torch.linspace(-4, 4, 200)
    shares = torch.sigmoid(0.7 * differences + 0.4)
    assert platt(differences, shares, torch.ones(200)) == pytest.approx((0.7, 0.4), abs=1e-3)
    assert platt(differences, shares.flip(0), torch.ones(200)) == (1.0, 0.0)


@pytest.mark.parametrize("layers", [0, 1])
def test_twice_from_the_same_seed_the_same_weights(qwen2: Path, tmp_path: Path, layers: int) -> None:
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        trained(settings_for(qwen2, layers=layers, seed=seed), tmp_path / name)
    first, second, other = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("first", "second", "other"))
    assert first == second
    assert first != other


@pytest.mark.parametrize("layers", [0, 1])
def test_the_card_of_a_model_that_can_tell_right_from_wrong(qwen2: Path, tmp_path: Path, layers: int) -> None:
    """Right solutions end with another word than wrong ones, which are the majority."""
    found = [
        SolvedProblem(
            f"Start with {number}.",
            [
                Solution(("Start", rf"Add \boxed{{{number}}}"), True),
                Solution(("Start", rf"Multiply \boxed{{{number + 1}}}"), False, 2),
            ],
        )
        for number in range(100)
    ]
    settings, paths = settings_for(qwen2, layers=layers, epochs=20, learning_rate=0.01), TrainingPaths(tmp_path / "out")
    with claimed(paths, {}):
        measured = asyncio.run(train(found, settings, paths, lambda *_: None))
    metrics = measured.metrics
    assert (metrics.problems, metrics.solutions, metrics.steps) == (20, 60, 60)
    assert metrics.step_auc is not None
    assert metrics.step_auc > 0.7
    assert (metrics.best_of_n, metrics.majority) == (1.0, 0.0)
    assert metrics.weighted >= 0.8  # a wrong answer has two votes
    assert measured.card is not None
    assert measured.card.helps
    assert read_card(paths.output) == measured.card
    assert f"card: {paths.output}" in paths.card.read_text()
    assert measured.verdict in paths.card.read_text()


class Killed(BaseException):
    """Ends a training anywhere."""


@pytest.mark.parametrize(("stage", "when"), [("reading", 2), ("training", 1)])
def test_an_interrupted_training_gives_the_same_weights(
    qwen2: Path, tmp_path: Path, stage: str, when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "CHECKPOINT_S", 0.0)
    settings = settings_for(qwen2, layers=1, epochs=3)
    trained(settings, tmp_path / "whole")
    calls = 0

    def kill(name: str, *_: Any) -> None:
        nonlocal calls
        calls += name == stage
        if calls > when:
            raise Killed

    with pytest.raises(Killed):
        trained(settings, tmp_path / "killed", kill)
    trained(settings, tmp_path / "killed")
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[name], killed[name]) for name in whole)


def test_a_backbone_of_another_architecture_becomes_a_token_classifier(tmp_path: Path) -> None:
    backbone = saved(LlamaForCausalLM, LlamaConfig(**SHAPE), tmp_path / "llama")
    trained(settings_for(backbone), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForTokenClassification"]
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert (weights["score.weight"].shape, weights["score.bias"].shape) == ((2, 32), (2,))
    assert "family: token_class" in (tmp_path / "out" / "README.md").read_text()


class TestDirectory:
    def test_another_training_is_refused_by_what_differs(self, tmp_path: Path) -> None:
        paths = TrainingPaths(tmp_path / "out")
        with claimed(paths, {"seed": 1}):
            pass
        with pytest.raises(DirectoryTaken, match="seed was 1 and is 2"), claimed(paths, {"seed": 2}):
            pass

    def test_a_directory_of_something_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(DirectoryTaken, match="not the output of a training"), claimed(TrainingPaths(tmp_path), {}):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

    def test_two_processes_do_not_train_in_one_directory(self, tmp_path: Path) -> None:
        paths = TrainingPaths(tmp_path / "out")
        with claimed(paths, {}), pytest.raises(DirectoryTaken, match="another process"), claimed(paths, {}):
            pass


def measured(rewards: dict[bool, float], problems: int, good_problems: int) -> Measured:
    """Measures problems with one right solution and two equal wrong ones each.

    The last steps of the first ``good_problems`` have these rewards, by whether the solution is right; all others
    have 0.5.
    """
    found = [
        SolvedProblem(
            f"q{number}",
            [Solution(("so", rf"\boxed{{{number}}}"), True), Solution(("so", r"\boxed{99}"), False, 2)],
        )
        for number in range(problems)
    ]
    scored = [
        ScoredSolution(
            index,
            number,
            [0.4, rewards[solution.right] if index < good_problems else 0.5],
            [1 / 3, float(solution.right)],
        )
        for index, problem in enumerate(found)
        for number, solution in enumerate(problem.solutions)
    ]
    return asyncio.run(measure(found, scored))


def test_the_card_recommends_what_beats_the_majority() -> None:
    good = measured({True: 0.9, False: 0.1}, 20, 20)
    metrics = good.metrics
    assert (metrics.weighted, metrics.best_of_n, metrics.majority, metrics.any_right) == (1.0, 1.0, 0.0, 1.0)
    assert (metrics.problems, metrics.solutions, metrics.steps) == (20, 60, 60)
    assert good.card is not None
    assert good.card.helps
    assert good.verdict.startswith("The reward model helps a vote: the majority of 3 was right in 0.0%")
    by_chance = measured({True: 0.9, False: 0.1}, 20, 1)
    assert by_chance.card is not None
    assert not by_chance.card.helps
    few = measured({True: 0.9, False: 0.1}, 10, 10)
    assert few.card is None
    assert few.verdict.startswith("Not judged: problems with several solutions: 10, ")
