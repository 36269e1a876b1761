"""A memory plan for the shipped models, and what `banyan plan` prints of it."""

import io
import json
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import save_file

from cluster.cli.plan import settings as planned_settings
from cluster.cli.plan import show_plan
from cluster.launch.errors import LaunchError
from deployments.config import AppConfig
from deployments.engines.settings import EMBEDDED_GENERATOR, GeneratorSettings
from deployments.startup.memory_plan import element_bytes, roles_of, stored_numbers
from kvstore.memory.device_memory import split

MIB = 1 << 20
TOKENS = {"generator": 1.0, "prm": 1.0}


def plan_output(path: Path | None, memory: str) -> str:
    out = io.StringIO()
    show_plan(path, memory, "1MiB", TOKENS, Console(file=out, width=120))
    return out.getvalue()


def test_weight_sizes_are_read_from_the_files() -> None:
    config = AppConfig()
    for role, settings in zip(roles_of(config, MIB, TOKENS), (config.generator, config.prm), strict=True):
        size = sum(path.stat().st_size for path in Path(settings.model_path).glob("*.safetensors"))
        assert size - 65_536 < role.weight_bytes <= size
        assert role.working_bytes == MIB


def test_a_model_and_its_reference_are_both_counted() -> None:
    given = {"family": "implicit", "model": EMBEDDED_GENERATOR, "reference": GeneratorSettings().model_path}
    generator, prm = roles_of(AppConfig.model_validate({"prm": given}), MIB, TOKENS)
    assert prm.weight_bytes == 2 * generator.weight_bytes
    assert prm.token_bytes == 2 * generator.token_bytes


def test_a_model_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no safetensors files, or some are missing"):
        stored_numbers(str(tmp_path), tmp_path, None)
    index = {"weight_map": {"a": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match="some are missing"):
        stored_numbers(str(tmp_path), tmp_path, None)


def test_shared_tensors_are_counted_once_by_their_type(tmp_path: Path) -> None:
    packed, scale = torch.zeros(8, 4, dtype=torch.int32), torch.zeros(6, dtype=torch.bfloat16)
    save_file({"packed": packed, "scale": scale}, tmp_path / "model.safetensors")
    save_file({"packed": torch.zeros(8, 4, dtype=torch.int32)}, tmp_path / "consolidated.safetensors")
    assert stored_numbers(str(tmp_path), tmp_path, None) == {"I32": 32, "BF16": 6}
    assert [element_bytes(dtype) for dtype in ("I32", "BF16", "F8_E4M3", "U8", "BOOL")] == [4, 2, 1, 1, 1]


def test_a_model_of_unknown_memory_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "of nobody"}')
    path = tmp_path / "config.yaml"
    application = {"name": "banyan", "import_path": "deployments.app:build"}
    application["args"] = {"generator": {"model": str(tmp_path)}}
    path.write_text(yaml.safe_dump({"http_options": {"host": "127.0.0.1"}, "applications": [application]}))
    with pytest.raises(LaunchError, match=f"generator.model: the memory of '{tmp_path}' is not known"):
        plan_output(path, "64MiB")


def test_the_printed_plan_is_a_valid_configuration() -> None:
    shown = plan_output(None, "64MiB")
    assert "sequences of maximum length" in shown
    written = yaml.safe_load(shown[shown.index("generator:\n") :])
    config = AppConfig.model_validate(written)
    given = (config.generator.kv_cache_memory_bytes or 0) + (config.prm.kv_cache_memory_bytes or 0)
    assert 40 * MIB < given < 0.95 * 64 * MIB


@pytest.mark.parametrize("on_gpu", [False, True])
def test_each_of_several_reward_models_gets_a_share(on_gpu: bool) -> None:
    function = {"prm": {"family": "function", "function": "my.checker:reward"}}
    given = {"family": "several", "of": [{"prm": {}}, function, {"prm": {"max_model_len": 512}}]}
    roles = roles_of(AppConfig.model_validate({"prm": given}), MIB, TOKENS)
    assert [role.name for role in roles] == ["generator", "prm.of.0.prm", "prm.of.2.prm"]
    written = planned_settings(split(roles, 100 * MIB), on_gpu)
    members = written["prm"]["of"]
    assert members[1] == {}
    assert [member["prm"]["kv_cache_memory_bytes"] > 0 for member in members[::2]] == [True, True]
    merged = [each | {"prm": each["prm"] | own.get("prm", {})} for each, own in zip(given["of"], members, strict=True)]
    config = AppConfig.model_validate({"prm": given | written["prm"] | {"of": merged}})
    shares = sum(prm.replicas.num_gpus or 0 for prm in config.prm.engines.values())
    assert (config.prm.replicas.num_gpus or 0) == pytest.approx(shares)
    assert (shares > 0) is on_gpu


def test_missing_memory_is_reported_in_bytes() -> None:
    with pytest.raises(
        LaunchError, match=r"the device has 10,485,760 bytes, and [\d,]+ are missing: engines may use 95%"
    ):
        plan_output(None, "10MiB")
    with pytest.raises(LaunchError, match="--memory: a size such as 24GiB"):
        plan_output(None, "plenty")


def test_a_config_of_another_application_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"name": "other", "import_path": "other:app"}]}))
    with pytest.raises(LaunchError, match="no application has the import_path"):
        plan_output(path, "64MiB")
