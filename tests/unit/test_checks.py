"""Checks while the application is built: settings against each other and against the models that they name."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from deployments.app import build
from deployments.config import AppConfig, LimitSettings
from deployments.controller import _chat_encoder, load_encoder
from deployments.engines import settings
from deployments.engines.rewards.family import TEMPLATE_TOKENS
from deployments.engines.settings import EMBEDDED_MODELS, GeneratorSettings
from search.strategies.solutions.greedy import Greedy
from tests.engine.reward_models import MODELS

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = {
    "Qwen/Qwen2.5-Math-7B-Instruct": {"max_position_embeddings": 4096, "rope_theta": 10000.0},
    "Qwen/Qwen2.5-Math-PRM-7B": {"max_position_embeddings": 4096, "rope_theta": 10000.0},
}
"""Context lengths in the models' published ``config.json``."""


def problems(given: dict[str, Any]) -> list[str]:
    with pytest.raises(ValueError, match=":") as refused:
        build(AppConfig.model_validate(given))
    return str(refused.value).splitlines()


def saved(directory: Path, config: dict[str, Any]) -> str:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def cached(cache: Path, model: str, config: dict[str, Any]) -> None:
    """Stores a model in the hub's local cache, in the layout of the hub's client."""
    folder = cache / f"models--{model.replace('/', '--')}"
    saved(folder / "snapshots" / "abc", config)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")


def example() -> dict[str, Any]:
    """The settings for your own models in the comments of serve_config.yaml."""
    _, _, shown = (ROOT / "serve_config.yaml").read_text().partition("# Your own models")
    lines = [line.removeprefix("#") for line in shown.splitlines() if line.startswith("#    ")]
    args: dict[str, Any] = yaml.safe_load("\n".join(lines))["args"]
    return args


def byte_tokenizer(directory: Path, vocabulary: int) -> str:
    """A model directory with a tokenizer of single bytes (256 tokens), or also of whole words (more tokens)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(
        ["Step by step, we want the sum of the roots: 14. Therefore, the answer is 5."] * 4, trainer
    )
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    return str(directory)


def test_the_defaults_and_the_shipped_configuration_can_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    build(AppConfig())
    assert list(tmp_path.iterdir()) == []
    shipped = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    build(AppConfig.model_validate(shipped["applications"][0]["args"]))
    assert (tmp_path / ".banyan" / "store" / "id").is_file()


def test_a_store_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    [problem] = problems({"controller": {"store": {"path": str(tmp_path / "file" / "store")}}})
    assert problem.startswith(f"controller.store.path: cannot use {tmp_path}")


def test_the_example_for_gpus_fits_its_models(tmp_path: Path) -> None:
    given = example()
    for part in ("generator", "prm"):
        cached(tmp_path, given[part]["model"], PUBLISHED[given[part]["model"]])
        given[part].setdefault("engine_args", {})["download_dir"] = str(tmp_path)
    build(AppConfig.model_validate(given))


@pytest.mark.parametrize(
    "config",
    [
        {"max_position_embeddings": 4096},
        {"text_config": {"max_position_embeddings": 4096}},
        {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    ],
)
def test_more_context_than_a_model_has_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    model = saved(tmp_path / "model", config)
    build(
        AppConfig.model_validate(
            {"generator": {"model": model, "max_model_len": 4096}, "prm": {"family": "function", "function": "a:b"}}
        )
    )
    for path, given in {
        "generator": {
            "generator": {"model": model, "max_model_len": 4097},
            "prm": {"family": "function", "function": "a:b"},
        },
        "prm": {"prm": {"model": model, "max_model_len": 4097}},
    }.items():
        assert problems(given) == [f"{path}.max_model_len: at most 4096, the context of {model}, not 4097"]


def test_a_model_in_the_hubs_cache_is_looked_up_there(tmp_path: Path) -> None:
    cached(tmp_path, "some/model", {"max_position_embeddings": 512})
    generator = {"model": "some/model", "engine_args": {"download_dir": str(tmp_path)}}
    assert problems({"generator": generator})[0].startswith("generator.max_model_len: at most 512")


@pytest.mark.parametrize(
    "config",
    [
        {"max_position_embeddings": 512, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"vocab_size": 300},
    ],
)
def test_facts_missing_from_the_files_are_left_to_the_engine(tmp_path: Path, config: dict[str, Any]) -> None:
    build(AppConfig.model_validate({"generator": {"model": saved(tmp_path / "model", config)}}))
    build(AppConfig.model_validate({"generator": {"model": "some/model-that-is-not-here"}}))
    build(AppConfig.model_validate({"generator": {"model": "/no/such/directory"}}))


def shared(part: str, **settings: Any) -> dict[str, Any]:
    return {part: {"replicas": {"num_gpus": 0.5}, **settings}}


@pytest.mark.parametrize("part", ["generator", "prm"])
def test_an_engine_on_a_part_of_a_device_must_set_its_kv_memory(part: str) -> None:
    (problem,) = problems(shared(part))
    assert problem.startswith(f"{part}.kv_cache_memory_bytes: must be set with replicas.num_gpus 0.5")
    build(AppConfig.model_validate(shared(part, kv_cache_memory_bytes=1 << 30)))


@pytest.mark.parametrize("part", ["generator", "prm"])
def test_an_engine_takes_no_more_of_a_device_than_it_reserves(part: str) -> None:
    given = shared(part, kv_cache_memory_bytes=1 << 30, engine_args={"gpu_memory_utilization": 0.85})
    message = "0.85 of the device is more than replicas.num_gpus reserves of it, 0.5"
    assert problems(given) == [f"{part}.engine_args.gpu_memory_utilization: {message}"]
    given[part]["engine_args"] = {"gpu_memory_utilization": 0.5}
    build(AppConfig.model_validate(given))


def engines_with(written: int, read: int, **prm: Any) -> dict[str, Any]:
    return {
        "generator": {"model": "some/generator", "max_model_len": written},
        "prm": {"model": "some/prm", "max_model_len": read, **prm},
    }


def test_a_reward_model_with_too_short_a_context_is_refused() -> None:
    assert problems(engines_with(4096, 4095)) == [
        "prm.max_model_len: 4095 is less than the 4096 needed: paths of up to 4096 tokens (generator.max_model_len)"
    ]
    build(AppConfig.model_validate(engines_with(4096, 4096)))


def test_tokens_that_the_prm_format_adds_to_each_step_count() -> None:
    given = engines_with(4096, 4096, family="label_turns") | {"controller": {"limits": {"depth": 50}}}
    (problem,) = problems(given)
    assert problem.startswith("prm.max_model_len: 4096 is less than the 4696 needed")
    assert "12 more for each of 50 steps (controller.limits.depth)" in problem
    given["prm"]["max_model_len"] = 4696
    build(AppConfig.model_validate(given))


def test_the_critique_of_a_generative_reward_model_needs_room() -> None:
    given = engines_with(4096, 8192, family="think_prm", max_tokens=4000)
    (problem,) = problems(given)
    needed = 4096 + AppConfig.model_validate(given).prm.engines[""].format_tokens(LimitSettings().depth)
    assert problem.startswith(f"prm.max_model_len: 8192 is less than the {needed} needed")
    assert "4032 for a critique (prm.max_tokens)" in problem
    given["prm"]["max_model_len"] = needed
    config = AppConfig.model_validate(given)
    build(config)
    assert config.search_context == 4096


def test_the_length_ratio_of_two_tokenizers_is_measured(tmp_path: Path) -> None:
    words, letters = byte_tokenizer(tmp_path / "words", 400), byte_tokenizer(tmp_path / "bytes", 256)
    given = engines_with(1024, 1100)
    given["generator"]["model"], given["prm"]["model"] = words, letters
    (problem,) = problems(given)
    assert "of this model's tokens for each of the generator's" in problem
    given["generator"]["model"], given["prm"]["model"] = letters, words
    build(AppConfig.model_validate(given))
    given["generator"]["model"] = words
    build(AppConfig.model_validate(given))
    (Path(words) / "tokenizer.json").write_text("{}")
    given["prm"]["model"] = letters
    build(AppConfig.model_validate(given))


def test_paths_are_limited_to_what_the_reward_model_can_read() -> None:
    assert AppConfig.model_validate(engines_with(4096, 8192)).search_context == 4096
    equal = AppConfig.model_validate(engines_with(4096, 4096, system_prompt="Score."))
    assert equal.search_context == 4096 - TEMPLATE_TOKENS - len("Score.")
    function = {"generator": {"max_model_len": 1000}, "prm": {"family": "function", "function": "a:b"}}
    assert AppConfig.model_validate(function).search_context == 1000
    assert problems(engines_with(64, 64))[0].startswith("prm.max_model_len: 64 is less than the 65 needed")


def thinking_tokenizer(directory: Path) -> str:
    """A model directory with Qwen3's marks and the end of its chat template."""
    path = byte_tokenizer(directory, 400)
    (directory / "config.json").write_text("{}")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}\n{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    )
    tokenizer.save_pretrained(path)
    return path


def test_a_generator_that_thinks_may_have_a_longer_context_than_the_reward_model(tmp_path: Path) -> None:
    given = engines_with(4096, 1024)
    given["generator"]["model"] = thinking_tokenizer(tmp_path / "thinks")
    config = AppConfig.model_validate(given)
    build(config)
    assert config.search_context == 1024 - TEMPLATE_TOKENS
    (problem,) = problems(given | {"controller": {"prm_reads_thinking": True}})
    assert problem.startswith("prm.max_model_len: 1024 is less than the 4096 needed")
    given["generator"]["reasoning"] = "none"
    (problem,) = problems(given)
    assert problem.startswith("prm.max_model_len: 1024 is less than the 4096 needed")


def test_a_generator_without_the_marks_of_its_reasoning_is_refused_by_name(tmp_path: Path) -> None:
    given: dict[str, Any] = engines_with(512, 512)
    given["generator"] |= {"model": thinking_tokenizer(tmp_path / "thinks"), "reasoning": "mistral"}
    (problem,) = problems(given)
    assert problem.startswith("generator.reasoning: the tokenizer has no token [THINK] and no token [/THINK]")
    for named in ("qwen3", "deepseek_r1", "think_text", "none", None):
        given["generator"]["reasoning"] = named
        build(AppConfig.model_validate(given))
    given["generator"]["reasoning"] = "qwen"
    with pytest.raises(ValueError, match=r"generator.reasoning\n.*no parser 'qwen'; there are .*qwen3.*; none for"):
        AppConfig.model_validate(given)


def test_the_controllers_encoder_knows_the_marks(tmp_path: Path) -> None:
    model = thinking_tokenizer(tmp_path / "thinks")
    marks = load_encoder(GeneratorSettings(model=model)).marks
    assert marks is not None
    assert (marks.opening, marks.closing) == ("<think>", "</think>")
    assert load_encoder(GeneratorSettings(model=model, reasoning="none")).marks is None
    assert load_encoder(GeneratorSettings()).marks is None


@pytest.mark.parametrize(
    ("generator", "block_size"),
    [({}, 32), ({"block_size": 64}, 64), ({"replicas": {"num_gpus": 1}, "block_size": 128}, 128)],
    ids=["a CPU's default", "as set", "as set on a GPU"],
)
def test_a_chunk_must_be_a_multiple_of_the_engines_block_size(generator: dict[str, Any], block_size: int) -> None:
    given = {"generator": generator, "cache": {"chunk_size": block_size + 16}}
    message = f"must be a multiple of {block_size}, the generator's block size, not {block_size + 16}"
    assert problems(given) == [f"cache.chunk_size: {message}"]
    build(AppConfig.model_validate(given | {"cache": {"chunk_size": block_size + 16, "enabled": False}}))
    build(AppConfig.model_validate(given | {"cache": {"chunk_size": 2 * block_size}}))


def test_on_a_gpu_vllms_default_block_size_is_expected() -> None:
    build(AppConfig.model_validate({"generator": {"replicas": {"num_gpus": 1}}, "cache": {"chunk_size": 48}}))


def test_a_vllm_built_for_gpus_has_their_blocks_whatever_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "runs_on_cpu", lambda: False)
    build(AppConfig.model_validate({"cache": {"chunk_size": 48}}))
    assert GeneratorSettings().expected_block_size == 16


@pytest.mark.parametrize("exact", [False, True])
def test_an_exact_generator_needs_exact_rewards(exact: bool) -> None:
    build(AppConfig.model_validate({"prm": {"exact": exact}}))
    build(AppConfig.model_validate({"generator": {"exact": exact}, "prm": {"exact": True}}))
    function = {"family": "function", "function": "search.tools.listing:listed"}
    build(AppConfig.model_validate({"generator": {"exact": exact}, "prm": function}))
    several = {"family": "several", "of": [{"prm": {"exact": True}}, {"prm": {"exact": not exact}}]}
    given = {"generator": {"exact": exact}, "prm": several}
    if exact:
        reason = "must be true with generator.exact: trees depend on rewards too"
        assert problems(given) == [f"prm.of.1.prm.exact: {reason}"]
    else:
        build(AppConfig.model_validate(given))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"system": "long " * 1200}, "controller.prompt: "),
        ({"examples": [{"question": "What is 1 + 1?", "answer": "2 " * 600}]}, "controller.prompt: "),
    ],
)
def test_a_configured_prompt_that_fills_the_context_is_refused(prompt: dict[str, Any], message: str) -> None:
    [problem] = problems({"controller": {"prompt": prompt}})
    assert problem.startswith(message)
    assert "leaves no room" in problem


def test_a_configured_prompt_that_the_template_accepts_is_built() -> None:
    prompt = {"system": "Be brief.", "examples": [{"question": "What is 1 + 1?", "answer": "2"}]}
    assert build(AppConfig.model_validate({"controller": {"prompt": prompt}}))


class Reads(Greedy):
    """A strategy of one's own that shows eight solutions at once."""

    aliases = ()
    name: Literal["reads"] = "reads"  # type: ignore[assignment]

    @property
    def most_shown(self) -> int:
        return 8


def reading(path_tokens: int, context: int, **controller: Any) -> dict[str, Any]:
    search = {"strategy": "reads", "max_path_tokens": path_tokens, "max_step_tokens": 32}
    return {
        "generator": {"max_model_len": context},
        "prm": {"family": "function", "function": "search.tools.listing:listed"},
        "controller": {"strategies": [f"{__name__}:Reads"], "default_search": search, **controller},
    }


def test_solutions_that_are_read_together_fit_the_context_or_are_refused_with_the_numbers() -> None:
    [problem] = problems(reading(200, 1024, efforts={"high": {"strategy": "reads", "max_path_tokens": 16}}))
    told = re.fullmatch(
        r"controller\.default_search: its prompts show 8 solutions of up to 200 tokens \(max_path_tokens\), with (\d+) "
        r"tokens for the template and a step: (\d+), but the context is 1024\. What would fit: (\d+) such solutions, "
        r"or max_path_tokens of (\d+)",
        problem,
    )
    assert told is not None, problem
    besides, needed, count, fitting = map(int, told.groups())
    assert (needed, count, fitting) == (besides + 1600, (1024 - besides) // 200, (1024 - besides) // 8)
    build(AppConfig.model_validate(reading(fitting, 1024)))
    assert len(problems(reading(fitting + 1, 1024))) == 1


def test_a_template_that_fills_the_context_is_refused() -> None:
    long = {"prompt": "{question} {candidates} {note}" + "long " * 1000}
    [problem] = problems({"controller": {"templates": {"fuse": long}}})
    assert problem.startswith("controller.templates.fuse: ")
    assert "leaves no room" in problem


CHAT = [{"role": "user", "content": "What is 1 + 1?"}]
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + PLAIN


def with_template(directory: Path, part: str, template: str | None) -> str:
    """A copy of an embedded model with another chat template, or none."""
    shutil.copytree(EMBEDDED_MODELS / part, directory)
    (directory / "chat_template.jinja").unlink()
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return str(directory)


@pytest.mark.parametrize(
    ("part", "template", "told"),
    [
        ("generator", None, "has no chat template"),
        ("generator", "", "has no chat template"),
        ("generator", "{{ messages[0].no_such.thing }}", "the chat template refuses these messages"),
        ("generator", "{% for %}", "the chat template"),
        ("generator", "{{ messages | no_such_filter }}", "the chat template"),
        ("generator", "Answer the question.", "makes the same prompt from every question"),
        ("generator", "{{ raise_exception('only tools') }}", "the chat template refuses these messages: only tools"),
        ("prm", None, "has no chat template"),
        ("prm", "{{ messages[5].content }}", "the chat template"),
    ],
)
def test_a_model_whose_chat_template_is_missing_or_broken_is_refused(
    tmp_path: Path, part: str, template: str | None, told: str
) -> None:
    [problem] = problems({part: {"model": with_template(tmp_path / "model", part, template)}})
    assert problem.startswith(f"{part}.model: ")
    assert told in problem


def test_a_chat_template_from_a_file_takes_the_place_of_the_models(tmp_path: Path) -> None:
    model = with_template(tmp_path / "model", "generator", None)
    good, bad = tmp_path / "good.jinja", tmp_path / "bad.jinja"
    good.write_text(PLAIN)
    bad.write_text("{% for %}")
    build(AppConfig.model_validate({"generator": {"model": model, "chat_template": str(good)}}))
    assert "the chat template" in problems({"generator": {"chat_template": str(bad)}})[0]
    assert "cannot be read" in problems({"generator": {"chat_template": str(tmp_path / "none.jinja")}})[0]
    bad.write_bytes(b"\xff\xfe\xff")
    assert "cannot be read" in problems({"generator": {"chat_template": str(bad)}})[0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"family": "step_head", "system_prompt": "Judge."}, "no system turn"),
        ({"family": "outcome", "system_prompt": "Judge."}, "no system turn"),
        ({"family": "label_turns", "system_prompt": "Judge.", "max_model_len": 4096}, "no system turn"),
        ({"family": "step_head", "step_tag": "<|none|>"}, "is not a special token"),
    ],
)
def test_a_reward_model_whose_template_refuses_its_familys_messages_is_refused(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    model = with_template(tmp_path / "model", "prm", NO_SYSTEM)
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 8192}))
    found = problems({"prm": {**given, "model": model}})
    assert any(problem.startswith("prm.model: ") and told in problem for problem in found)


def test_a_reward_model_that_reads_no_chat_needs_no_template(tmp_path: Path) -> None:
    MODELS["value_head"](tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    build(AppConfig.model_validate({"prm": {"family": "value_head", "model": str(tmp_path)}}))


def test_a_tokenizer_of_another_directory_is_the_one_that_is_checked(tmp_path: Path) -> None:
    model, tokenizer = with_template(tmp_path / "model", "generator", PLAIN), tmp_path / "tokenizer"
    tokenizer.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / file).rename(tokenizer / file)
    assert "has no tokenizer" in problems({"generator": {"model": model}})[0]
    given = {"generator": {"model": model, "engine_args": {"tokenizer": str(tokenizer)}}}
    assert "has no chat template" in problems(given)[0]
    (tokenizer / "chat_template.jinja").write_text(PLAIN)
    build(AppConfig.model_validate(given))
    (tokenizer / "tokenizer.json").unlink()
    (tokenizer / "tokenizer_config.json").unlink()
    assert "tokenizer" in problems(given)[0]


def test_controllers_read_the_tokenizer_and_the_template_that_the_settings_name(tmp_path: Path) -> None:
    model, template = with_template(tmp_path / "model", "generator", None), tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    bare = GeneratorSettings(model=model)
    with pytest.raises(ValueError, match="the model has no chat template"):
        load_encoder(bare).encode_chat(CHAT)
    with pytest.raises(ValueError, match="has no chat template, neither in"):
        _chat_encoder(bare)
    shutil.move(tmp_path / "model" / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="tokenizer"):
        load_encoder(bare)
    settings = GeneratorSettings(model=model, chat_template=str(template), engine_args={"tokenizer": str(tmp_path)})
    encoder = load_encoder(settings)
    assert encoder.encode_chat(CHAT) == encoder.encode_text("What is 1 + 1?")
