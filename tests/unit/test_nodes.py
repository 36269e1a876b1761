"""Nodes are compared in everything that must be equal, and a process is distinguished from a successor with its pid."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.app import _built
from deployments.engines.settings import GeneratorSettings
from deployments.startup.nodes import Built, NodeDiffers, kv_identity, model_digest
from kvstore.server.processes import Processes

BUILT = Built({"SET": "1", "UNSET": None})


def model(path: Path, weights: bytes, config: str = "{}") -> GeneratorSettings:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config)
    (path / "model.safetensors").write_bytes(weights)
    return GeneratorSettings(model=str(path))


def test_a_node_equal_to_the_builders_passes() -> None:
    BUILT.check(environment={"SET": "1", "OTHER": "2"})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "SET is not set, but '1' where the application was built"),
        ({"SET": "0"}, "SET is '0', but '1'"),
        ({"SET": "1", "UNSET": "x"}, "UNSET is 'x', but not set where"),
    ],
)
def test_a_variable_that_differs_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(NodeDiffers, match=message) as refused:
        BUILT.check(environment=environment)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_nodes_must_ask_for_the_same_model_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    built = _built()
    built.check()
    other = {name: value for name, value in os.environ.items() if name != "VLLM_USE_V2_MODEL_RUNNER"}
    with pytest.raises(NodeDiffers, match="VLLM_USE_V2_MODEL_RUNNER is not set, but '0' where"):
        built.check(environment=other)


def test_the_name_of_stored_kv_depends_on_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "a"
    before = kv_identity(model(path, b"weights"))
    assert kv_identity(model(path, b"weights").model_copy(update={"clamp": "off"})) == before
    assert kv_identity(model(path, b"weighty")) != before


def test_models_of_equal_sizes_have_different_digests(tmp_path: Path) -> None:
    weights = bytes(3 << 20)
    digest = model_digest(model(tmp_path / "a", weights))
    assert digest is not None
    assert model_digest(model(tmp_path / "b", weights)) == digest, "wherever its files are"
    others = [
        model(tmp_path / "last", weights[:-1] + b"x"),
        model(tmp_path / "config", weights, '{"a": 1}'),
        model(tmp_path / "longer", weights + b"\0"),
    ]
    assert len({digest, *map(model_digest, others)}) == 4
    Built({}, digest).check([model(tmp_path / "a", weights)], {})
    with pytest.raises(NodeDiffers, match=f"{tmp_path / 'last'} does not hold the model"):
        Built({}, digest).check([others[0]], {})


def test_a_missing_model_is_left_to_the_engine(tmp_path: Path) -> None:
    missing = GeneratorSettings(model=str(tmp_path / "nothing"))
    assert model_digest(missing) is None
    Built({}, "digest").check([missing], {})
    Built({}, None).check([model(tmp_path / "a", b"")], {})


def test_processes_that_have_ended_are_forgotten() -> None:
    processes = Processes()
    children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)]
    pids = [child.pid for child in children]
    try:
        for pid in (*pids, pids[0]):
            processes.add(pid)
        assert processes.living() == set(pids)
        processes.remove(pids[1])
        processes.remove(pids[1])
        assert processes.living() == {pids[0], pids[2]}
    finally:
        for child in children:
            child.communicate()
    assert processes.living() == set()
    processes.add(pids[0])
    assert processes.living() == set()
