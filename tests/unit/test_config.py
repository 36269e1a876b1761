"""The settings tree: the values that it refuses, and the path that its errors name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.config import AppConfig
from deployments.engines.rewards import FAMILIES
from deployments.engines.rewards.card_file import CARD_FILE
from deployments.engines.rewards.function import FunctionSettings
from deployments.engines.rewards.implicit import ImplicitSettings
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.settings import GeneratorSettings, ReplicaSettings
from tests.unit.reward_cards import worthless_card

HEAVY = ("vllm", "torch", "transformers", "ray", "fastapi", "lmcache")
CRITIQUES = {"samples": 2, "max_tokens": 100, "temperature": 0.5, "top_p": 0.9, "top_k": 10}
OWN = {
    "step_head": {"step_tag": "<s>", "system_prompt": "Judge."},
    "label_turns": {"labels": ["yes", "no"], "system_prompt": "Judge."},
    "label_inline": {"labels": ["yes", "no"], "step_tag": "?"},
    "label_tokens": {"template": {"tag": " ="}},
    "math_shepherd": {},
    "er_prm": {},
    "math_psa": {},
    "versaprm": {},
    "multi_rm": {},
    "token_class": {"step_separator": "\n\n"},
    "value_head": {},
    "pqm": {"question": "[INST] {question} [/INST]\n"},
    "llemma_prm": {},
    "math_minos": {},
    "reason_eval": {},
    "ensemble_head": {"step_tag": "<s>", "system_prompt": "Judge."},
    "implicit": {"reference": "some/reference", "reference_revision": "v1", "beta": 0.01, "accumulate": True},
    "outcome": {"system_prompt": "Judge."},
    "trajectory": {},
    "eurus_rm": {},
    "generative": {**CRITIQUES, "template": {"opening": "Let's see: "}},
    "think_prm": CRITIQUES,
    "multi_rm_generative": CRITIQUES,
    "gen_prm": CRITIQUES,
    "r_prm": CRITIQUES,
    "function": {"function": "package.module:reward"},
    "execution": {"program_seconds": 5.0, "program_memory_bytes": 1 << 20, "workers": 3},
    "several": {
        "of": [{"prm": {"family": "function", "function": "a:b"}}, {"prm": {}, "scale": 0.5, "offset": -1}],
        "combine": "min",
    },
    "none": {},
}
ALL: dict[str, Any] = {key: value for own in OWN.values() for key, value in own.items()}


def prm(family: str | None, **settings: Any) -> dict[str, Any]:
    given = settings if family is None else {"family": family, **settings}
    if family not in ("function", "execution", "several", "none", "step_head", None):
        given["model"] = "some/model"
    return {"prm": given}


def several(*members: dict[str, Any]) -> dict[str, Any]:
    return prm("several", of=[{"prm": member} for member in members])


CALCULATOR = "deployments.step_hooks.calculator:correct"


def step_hook(function: str, **settings: Any) -> dict[str, Any]:
    return {"controller": {"step_hook": {"function": function, **settings}}}


def python_tool(**settings: Any) -> dict[str, Any]:
    return {"controller": {"tools": {"python": settings}}}


def faults(given: dict[str, Any]) -> dict[str, str]:
    """Messages of the errors, by path."""
    with pytest.raises(ValidationError) as refused:
        AppConfig.model_validate(given)
    return {".".join(map(str, error["loc"])): error["msg"] for error in refused.value.errors()}


def test_importing_the_settings_imports_no_engine_and_no_server() -> None:
    program = f"import sys, deployments.config; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_family_is_tested() -> None:
    assert OWN.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", OWN)
def test_a_family_takes_its_own_settings_and_refuses_those_of_others_by_their_path(family: str) -> None:
    settings = AppConfig.model_validate(prm(family, **OWN[family])).prm
    assert type(settings) is FAMILIES[family]
    for name, value in ALL.items():
        if name not in OWN[family]:
            [(path, message)] = faults(prm(family, **OWN[family], **{name: value})).items()
            assert path == f"prm.{name}"
            assert message.startswith("no such setting; ")


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ({"generater": {}}, "generater", "did you mean generator?"),
        ({"generator": {"modle": "x"}}, "generator.modle", "did you mean model?"),
        ({"generator": {"url": "http://a", "modle": "x"}}, "generator.modle", "did you mean model?"),
        ({"prm": {"max_modle_len": 1}}, "prm.max_modle_len", "did you mean max_model_len?"),
        ({"prm": {"family": "function", "function": "a:b", "functoin": 1}}, "prm.functoin", "did you mean function?"),
        ({"generator": {"replicas": {"min_replica": 1}}}, "generator.replicas.min_replica", "mean min_replicas?"),
        ({"cache": {"chunksize": 32}}, "cache.chunksize", "did you mean chunk_size?"),
        ({"cache": {"zzz": 1}}, "cache.zzz", "available: enabled, required, l1_size_gb"),
        ({"controller": {"store": {"pth": "/x"}}}, "controller.store.pth", "did you mean path?"),
        (
            {"controller": {"default_search": {"strategy": "dvts", "temprature": 1}}},
            "controller.default_search.temprature",
            "did you mean temperature?",
        ),
        (
            {"controller": {"efforts": {"low": {"strategy": "greedy", "budget": {"tokns": 1}}}}},
            "controller.efforts.low.budget.tokns",
            "did you mean tokens?",
        ),
        ({"telemetry": {"tracing": {"ration": 1}}}, "telemetry.tracing.ration", "did you mean ratio?"),
    ],
)
def test_a_name_that_does_not_exist_is_told_the_nearest(given: dict[str, Any], path: str, message: str) -> None:
    [(where, said)] = faults(given).items()
    assert where == path
    assert said.startswith("no such setting; ")
    assert message in said


def test_what_else_is_wrong_beside_an_unknown_name_is_told_too() -> None:
    found = faults({"generator": {"modle": "x", "max_model_len": 1}})
    assert found.keys() == {"generator.modle", "generator.max_model_len"}
    assert "greater than or equal to 64" in found["generator.max_model_len"]


@pytest.mark.parametrize("name", ["model", "max_model_len", "engine_args", "kv_cache_memory_bytes"])
def test_a_reward_function_has_no_engine_settings(name: str) -> None:
    assert list(faults(prm("function", function="a:b", **{name: 1}))) == [f"prm.{name}"]


def test_without_a_family_the_prm_is_a_step_head_by_default_the_embedded_one() -> None:
    assert AppConfig().prm == AppConfig.model_validate({"prm": {}}).prm == StepHeadSettings()
    given = AppConfig.model_validate(prm(None, step_tag="<s>", max_model_len=512)).prm
    assert given == StepHeadSettings(step_tag="<s>", max_model_len=512)


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        (prm("guess"), "prm.family", "step_head, label_turns"),
        ({"prm": {"family": ["step_head"]}}, "prm.family", "unknown family"),
        ({"prm": "step_head"}, "prm", "must be a mapping"),
        ({"prm": {"family": "outcome"}}, "prm.model", "Field required"),
        (prm("function"), "prm.function", "Field required"),
        (prm("label_turns", labels=["+"]), "prm.labels.1", "Field required"),
        (prm("implicit"), "prm.reference", "Field required"),
        (prm("implicit", reference="r", beta=0), "prm.beta", "greater than 0"),
        (prm(None, lora="a", engine_args={"load_format": "dummy"}), "prm", "engine_args may not set load_format"),
        (prm("value_head", engine_args={"load_format": "dummy"}), "prm", "engine_args may not set load_format"),
        (
            prm("value_head", chat_template="a.jinja"),
            "prm",
            "chat_template has no effect with this family",
        ),
        (prm("math_shepherd", chat_template="a.jinja"), "prm", "chat_template has no effect with"),
        (prm("eurus_rm", engine_args={"hf_overrides": {}}), "prm", "engine_args may not set hf_overrides"),
        (prm("implicit", reference="r", engine_args={"hf_overrides": {}}), "prm", "may not set hf_overrides"),
        (several({}), "prm.of", "at least 2 reward models"),
        (several({}, {"model": "m", "family": "guess"}), "prm.of.1.prm.family", "unknown family"),
        (several({}, {"step_tga": "m"}), "prm.of.1.prm.step_tga", "did you mean step_tag?"),
        ({"generator": {"url": "http://a", "dtype": "auto"}}, "generator.dtype", "not together with generator.url"),
        ({"generator": {"url": "ftp://a"}}, "generator.url", "must be http://host:port"),
        ({"generator": {"url": "http://a"}, "controller": {"attempts": 0}}, "controller.attempts", "greater than"),
        (several({}, several({}, {})["prm"]), "prm.of.1.prm", "cannot contain another one"),
        (several({}, {"replicas": {"max_replicas": 2}}), "prm.of.1", "only num_gpus may be set"),
        (several({}, {"replicas": {"num_gpus": 0.5}}), "prm", "num_gpus must be at least 0.5"),
        ({"controller": {"limits": {"seconds": 86_401}}}, "controller.limits.seconds", "less than or equal to 86400"),
        (prm(None, replicas={"min_replicas": 0}), "prm.replicas.min_replicas", "greater than or equal to 1"),
        ({"controller": {"step_clusters": "clusters"}}, "controller.step_clusters", "is not an import path"),
        ({"controller": {"step_clusters": "no_such.module:f"}}, "controller.step_clusters", "cannot be imported"),
        (
            {"controller": {"step_clusters": "deployments.config:EFFORTS"}},
            "controller.step_clusters",
            "is not a function",
        ),
        ({"controller": {"step_hook": {}}}, "controller.step_hook.function", "required"),
        (step_hook("hook"), "controller.step_hook.function", "is not an import path"),
        (step_hook("no_such.module:f"), "controller.step_hook.function", "cannot be imported"),
        (step_hook("deployments.config:merged"), "controller.step_hook.function", "is not an async function"),
        (step_hook(CALCULATOR, timeout_s=0), "controller.step_hook.timeout_s", "greater than 0"),
        (python_tool(calls=0), "controller.tools.python.calls", "greater than or equal to 1"),
        (python_tool(seconds=61), "controller.tools.python.seconds", "less than or equal to 60"),
        (python_tool(memory_mb=1 << 20), "controller.tools.python.memory_mb", "less than or equal to 2048"),
        (
            python_tool(function="deployments.config:merged"),
            "controller.tools.python.function",
            "not an async function",
        ),
        ({"controller": {"tools": {"bash": {}}}}, "controller.tools.bash", "python"),
        (step_hook(CALCULATOR, fallback="ignore"), "controller.step_hook.fallback", "'leave' or 'fail'"),
    ],
)
def test_errors_name_the_path_that_was_written(given: dict[str, Any], path: str, message: str) -> None:
    (found,) = faults(given).items()
    assert found[0] == path
    assert message in found[1]


@pytest.mark.parametrize(
    ("search", "path"),
    [
        ({"strategy": "beam_search", "n": 0}, "n"),
        ({"strategy": "beam_search", "budget": {"tokens": -1}}, "budget.tokens"),
        ({"strategy": "beem_search"}, "strategy"),
        ({"n": 4}, "strategy"),
        ({"strategy": "greedy", "n": 4}, "n"),
    ],
)
def test_the_default_search_is_checked_when_the_application_is_built(search: dict[str, Any], path: str) -> None:
    assert list(faults({"controller": {"default_search": search}})) == [f"controller.default_search.{path}"]


@pytest.mark.parametrize("part", ["generator", "prm"])
@pytest.mark.parametrize("name", ["max_model_len", "block_size", "model"])
def test_engine_args_with_a_setting_of_their_own_are_refused(part: str, name: str) -> None:
    ((path, message),) = faults({part: {"engine_args": {name: 64}}}).items()
    assert path == f"{part}.engine_args"
    assert name in message


@pytest.mark.parametrize("part", ["generator", "prm"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"chat_template": "a.jinja"}, "chat_template: set it beside engine_args"),
        ({"hf_config_path": "/other"}, "hf_config_path: only vLLM would read it: put the config.json into the model's"),
        ({"hf_token": "hf_abc"}, "hf_token: set HF_TOKEN in the environment of every node"),
        ({"skip_tokenizer_init": True}, "skip_tokenizer_init: Banyan makes the prompts with the tokenizer"),
        ({"tokenizer_mode": "slow"}, "tokenizer_mode: "),
        ({"served_model_name": "m"}, "served_model_name: set generator.served_name instead"),
        ({"runner": "pooling", "convert": "classify"}, "convert: the reward family decides it"),
        ({"tokenizer": 7}, "tokenizer: must be a str, not 7"),
        ({"revision": ["main"]}, "revision: must be a str"),
        ({"trust_remote_code": "yes"}, "trust_remote_code: must be a bool, not 'yes'"),
    ],
)
def test_engine_args_that_only_the_engine_would_follow_are_refused_with_what_to_use(
    part: str, given: dict[str, Any], told: str
) -> None:
    ((path, message),) = faults({part: {"engine_args": given}}).items()
    assert path == f"{part}.engine_args"
    assert told in message


def test_engine_args_that_banyan_follows_too_are_taken() -> None:
    given = {
        "tokenizer": "some/tokenizer",
        "tokenizer_revision": "v2",
        "revision": "v1",
        "trust_remote_code": True,
        "download_dir": None,
    }
    generator = AppConfig.model_validate({"generator": {"engine_args": given}}).generator
    assert generator.tokenizer == ("some/tokenizer", "v2", True)
    assert generator.revisions == {"model": "v1"}
    assert GeneratorSettings(engine_args={"revision": "v1"}).tokenizer.revision == "v1"


def test_a_reference_has_a_revision_of_its_own() -> None:
    implicit = prm("implicit", reference="some/reference", engine_args={"revision": "v1"})
    settings = AppConfig.model_validate(implicit).prm
    assert isinstance(settings, ImplicitSettings)
    assert settings.revisions == {"model": "v1", "reference": None}
    implicit["prm"]["reference_revision"] = "v2"
    settings = AppConfig.model_validate(implicit).prm
    assert isinstance(settings, ImplicitSettings)
    assert settings.revisions == {"model": "v1", "reference": "v2"}
    assert settings.hf_overrides["banyan_reference_revision"] == "v2"


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    config = AppConfig.model_validate(
        {
            "generator": {"chat_template": str(tmp_path / "none.jinja")},
            "prm": {"engine_args": {"tokenizer": str(tmp_path / "none")}},
        }
    )
    assert config.missing_models() == [
        f"generator.chat_template: there is no file {tmp_path}/none.jinja",
        f"prm.engine_args.tokenizer: there is no directory {tmp_path}/none: give a hub id, or a tokenizer's directory",
    ]


def test_step_clusters_is_the_import_path_of_a_function() -> None:
    path = "search.strategies.levels.step_clusters:clusters_by_contents"
    assert AppConfig.model_validate({"controller": {"step_clusters": path}}).controller.step_clusters == path
    assert AppConfig().controller.step_clusters is None


def test_generators_share_kv_if_their_settings_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(**changed: Any) -> str:
        return GeneratorSettings(**changed).kv_settings

    same: dict[str, Any] = {"clamp": "off", "max_num_seqs": 7, "stall_s": 3.0, "kv_cache_memory_bytes": 1 << 24}
    assert identity(**same, cpu_threads=2, served_name="other", replicas=ReplicaSettings(max_replicas=3)) == identity()
    changes: list[dict[str, Any]] = [
        {"model": "other"},
        {"dtype": "float16"},
        {"exact": True},
        {"block_size": 64},
        {"max_model_len": 512},
        {"engine_args": {"hf_overrides": {"rope_theta": 1.0}}},
    ]
    assert len({identity(), *(identity(**change) for change in changes)}) == 1 + len(changes)
    on_cpu = identity()
    monkeypatch.setattr("deployments.engines.settings.runs_on_cpu", lambda: False)
    assert identity() != on_cpu  # the type behind `auto` is another one


def test_settings_survive_their_own_dump() -> None:
    config = AppConfig.model_validate(prm("function", **OWN["function"]))
    assert isinstance(config.prm, FunctionSettings)
    assert AppConfig.model_validate(config.model_dump()) == AppConfig.model_validate_json(config.model_dump_json())
    assert AppConfig.model_validate(config.model_dump()).prm == config.prm


def test_a_card_is_read_where_settings_are_checked(tmp_path: Path) -> None:
    card = worthless_card()
    (tmp_path / CARD_FILE).write_text(card.model_dump_json())
    for given in (str(tmp_path), str(tmp_path / CARD_FILE), card.model_dump(mode="json")):
        for prm in ({}, {"family": "function", "function": "math:sqrt"}):
            config = AppConfig.model_validate({"prm": {**prm, "card": given}})
            assert config.prm.card == card
            assert AppConfig.model_validate(config.model_dump(mode="json")) == config
    member = {"prm": {"family": "step_head", "card": str(tmp_path)}}
    (tmp_path / "other.json").write_text("{}")
    for wrong, message in (
        ({"card": str(tmp_path / "missing.json")}, "missing.json cannot be read: No such file or directory"),
        ({"card": str(tmp_path / "other.json")}, "other.json is no card: problems: Field required"),
        ({"card": card.model_dump(mode="json") | {"version": 2}}, "Input should be 1"),
        ({"family": "several", "of": [member, member]}, "for all models together only: prm.card"),
    ):
        with pytest.raises(ValidationError, match=message):
            AppConfig.model_validate({"prm": wrong})


def test_in_front_of_a_backend_searches_are_votes_unless_there_are_rewards() -> None:
    url = {"generator": {"url": "http://a:8000/v1"}}
    alone = AppConfig.model_validate(url)
    assert alone.backend is not None
    assert (alone.has_rewards, alone.engines, alone.search_context) == (False, {}, alone.generator.max_model_len)
    searches = [alone.controller.default_search, *alone.controller.efforts.values()]
    assert {search["strategy"] for search in searches} == {"self_consistency"}
    own = AppConfig.model_validate({**url, "controller": {"efforts": {"low": {"strategy": "greedy"}}}}).controller
    assert (own.efforts["low"], own.efforts["high"]["n"]) == ({"strategy": "greedy"}, 64)
    scored = AppConfig.model_validate({**url, "prm": {"family": "function", "function": "a:b"}})
    assert (scored.has_rewards, scored.controller.default_search["strategy"]) == (True, "beam_search")
    assert AppConfig().backend is None
    assert AppConfig.model_validate(alone.model_dump()) == alone
