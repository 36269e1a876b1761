"""A config file is checked before anything is started; what is wrong is named by its place."""

from pathlib import Path

import pytest

from cluster.launch.config_file import read_config
from cluster.launch.errors import LaunchError

WRONG = {
    "an unknown key": ("applications: [{import_path: 'deployments.app:build', args: {generater: {}}}]", "generater"),
    "a value out of bounds": (
        "applications: [{import_path: 'deployments.app:build', args: {controller: {limits: {n: 0}}}}]",
        "args.controller.limits.n: Input should be greater than or equal to 1",
    ),
    "a setting of another reward family": (
        "applications: [{import_path: 'deployments.app:build', args: {prm: {labels: [a, b]}}}]",
        "args.prm.labels: Extra inputs are not permitted",
    ),
    "no applications": ("{}", "names no applications"),
    "a list": ("[]", "names no applications"),
    "no mapping": ("applications: [1]", "applications.0 must be a mapping"),
    "no YAML": ("a: [", "not YAML"),
    "options that are none": ("applications: [{import_path: x}]\nhttp_options: 8000", "http_options must be a mapping"),
}


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(content)
    with pytest.raises(LaunchError) as refused:
        read_config(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot read"):
        read_config(tmp_path / "missing.yaml")


def test_host_and_port_replace_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("applications: [{import_path: 'other:app'}]\nhttp_options: {port: 8000, root_path: /x}")
    assert read_config(path, port=9000)["http_options"] == {"port": 9000, "root_path": "/x"}
    assert read_config(path)["http_options"] == {"port": 8000, "root_path": "/x"}


def test_without_a_file_the_defaults_are_served() -> None:
    assert read_config(None, "127.0.0.1", 1234)["applications"][0]["import_path"] == "deployments.app:build"
