"""A plan for the shipped models, and whether what it says is what they take."""

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from cluster.cli.plan import show_plan
from cluster.launch.errors import LaunchError
from deployments.config import AppConfig
from deployments.memory_plan import parameters, roles_of

MIB = 1 << 20


def told(path: Path | None, memory: str) -> str:
    out = io.StringIO()
    show_plan(path, memory, "1MiB", {}, Console(file=out, width=120))
    return out.getvalue()


def test_weights_are_those_of_the_files() -> None:
    config = AppConfig()
    for role, settings in zip(roles_of(config, MIB, {}), (config.generator, config.prm), strict=True):
        size = sum(path.stat().st_size for path in Path(settings.model_path).glob("*.safetensors"))
        assert size - 65_536 < role.weight_bytes <= size
        assert role.working_bytes == MIB


def test_a_model_without_weights_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no safetensors files"):
        parameters(str(tmp_path))


def test_what_is_printed_is_a_configuration_that_is_taken() -> None:
    shown = told(None, "64MiB")
    assert "sequences of the longest" in shown
    written = yaml.safe_load(shown[shown.index("generator:\n") :])
    config = AppConfig.model_validate(written)
    given = (config.generator.kv_cache_memory_bytes or 0) + (config.prm.kv_cache_memory_bytes or 0)
    assert 40 * MIB < given < 0.95 * 64 * MIB


def test_too_little_is_told_in_bytes() -> None:
    with pytest.raises(LaunchError, match=r"10,485,760 bytes, of which 95% are given out, are [\d,]+ too few"):
        told(None, "10MiB")
    with pytest.raises(LaunchError, match="--memory: a size such as 24GiB"):
        told(None, "plenty")


def test_a_config_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"name": "other", "import_path": "other:app"}]}))
    with pytest.raises(LaunchError, match="no application has the import_path"):
        told(path, "64MiB")
