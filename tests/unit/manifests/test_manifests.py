"""Manifests for KubeRay and `ray up`: what the program makes, what KubeRay and Kubernetes accept, and an application
that can be built and finds the resources that it asks for."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator

from cluster.launch.config_file import app_config, read_config
from cluster.manifests.__main__ import CONFIGS, FOLDER, manifests
from cluster.manifests.served import KEYS_FILE
from deployments.app import build
from deployments.engines.settings import EngineSettings
from deployments.startup.environment import variables

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
CRD = Path(__file__).parent / "kuberay" / "ray.io_rayservices.yaml.gz"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
KUBERNETES = "1.30"
WRITABLE = {"/tmp", "/home/banyan", "/dev/shm"}
SIZES = {"Gi": 1 << 30}


@cache
def crd() -> Draft7Validator:
    """KubeRay's schema of a RayService; unknown names, which Kubernetes would drop, are refused."""
    loaded = yaml.load(gzip.decompress(CRD.read_bytes()), Loader=yaml.CSafeLoader)
    [schema] = [each["schema"]["openAPIV3Schema"] for each in loaded["spec"]["versions"] if each["name"] == "v1"]
    schema["properties"]["metadata"] = {}
    return Draft7Validator(strict(schema))


def strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    return found


def faults(rayservice: Json) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in crd().iter_errors(rayservice)]


@cache
def rayservice(name: str) -> Json:
    loaded: Json = yaml.safe_load((FOLDER / "rayservices" / f"{name}.yaml").read_text())
    return loaded


def templates(name: str) -> Iterator[tuple[str, Json, Json]]:
    """Pods, with the name of their group and the arguments of their `ray start`."""
    cluster = rayservice(name)["spec"]["rayClusterConfig"]
    head = cluster["headGroupSpec"]
    yield "head", head["template"], head["rayStartParams"]
    for group in cluster["workerGroupSpecs"]:
        yield group["groupName"], group["template"], group["rayStartParams"]


def size(text: str) -> int:
    return int(text[:-2]) * SIZES[text[-2:]]


def test_the_committed_manifests_are_what_the_program_makes() -> None:
    """`python -m cluster.manifests` writes them."""
    made = manifests()
    assert {path: path.read_text() for path in made} == made
    assert set(FOLDER.glob("rayservices/*")) == {path for path in made if path.parent.name == "rayservices"}


@pytest.mark.parametrize("name", NAMES)
def test_kuberay_accepts_the_rayservice(name: str) -> None:
    assert faults(rayservice(name)) == []


def test_what_kuberay_does_not_know_is_found() -> None:
    wrong = json.loads(json.dumps(rayservice(NAMES[0])))
    wrong["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParameters"] = {}
    wrong["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["ports"] = "8000"
    del wrong["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["groupName"]
    assert len(faults(wrong)) == 3


@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_accepts_the_pods(name: str) -> None:
    for group, template, _ in templates(name):
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": group, **template["metadata"]}}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_described_application_can_be_built(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    keys = tmp_path / "api.keys"
    keys.write_text("0123456789abcdef operator\n")
    written = rayservice(name)["spec"]["serveConfigV2"]
    assert KEYS_FILE in written
    (tmp_path / "serve.yaml").write_text(written.replace(KEYS_FILE, str(keys)))
    build(app_config(read_config(tmp_path / "serve.yaml")))


@pytest.mark.parametrize("name", NAMES)
def test_every_replica_finds_its_resources(name: str) -> None:
    cluster = rayservice(name)["spec"]["rayClusterConfig"]
    served = yaml.safe_load(rayservice(name)["spec"]["serveConfigV2"])
    config = app_config(served)
    assert isinstance(config.prm, EngineSettings)
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    taken = dict.fromkeys(groups, 0.0)
    for engine in (config.generator, config.prm):
        [(group_name, amount)] = engine.replicas.resources.items()
        group = groups[group_name]
        [container] = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert limits == container["resources"]["requests"]
        assert json.loads(group["rayStartParams"]["resources"].strip("'")) == {group_name: 1}
        taken[group_name] += amount
        assert engine.replicas.num_gpus is not None  # nodes that join later are planned by nobody
        assert engine.replicas.num_gpus <= int(limits.get("nvidia.com/gpu", 0))
        assert engine.replicas.num_cpus <= int(limits["cpu"])
        assert group["minReplicas"] <= engine.replicas.min_replicas
        assert group["maxReplicas"] >= engine.replicas.max_replicas
    assert set(taken.values()) == {1.0}


@pytest.mark.parametrize("name", NAMES)
def test_shared_memory_holds_ray_and_the_engines_and_is_part_of_the_pods_memory(name: str) -> None:
    config = app_config(yaml.safe_load(rayservice(name)["spec"]["serveConfigV2"]))
    for group, template, params in templates(name):
        [volume] = [each for each in template["spec"]["volumes"] if each["name"] == "shm"]
        assert volume["emptyDir"]["medium"] == "Memory"
        shared = size(volume["emptyDir"]["sizeLimit"])
        memory = size(template["spec"]["containers"][0]["resources"]["limits"]["memory"])
        needed = int(params["object-store-memory"])
        if group in config.generator.replicas.resources:
            if not config.generator.replicas.num_gpus:
                needed += config.generator.kv_cache_memory_bytes or 1 << 28
            assert memory > shared + config.cache.l1_size_gb * (1 << 30)
        assert needed <= shared < memory


@pytest.mark.parametrize("name", NAMES)
def test_pods_are_confined_and_have_the_environment_of_every_node(name: str) -> None:
    for group, template, _ in templates(name):
        pod = template["spec"]
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        mounts = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
        assert mounts == WRITABLE
        given = {each["name"]: each.get("value") for each in container["env"]}
        expected = variables() | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
        del expected["RAY_AUTH_TOKEN_PATH"]
        assert given.items() >= expected.items()
        if group != "head":
            assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "serve"}
            assert not pod["automountServiceAccountToken"]


def pods_in(content: Any) -> Iterator[Json]:
    """Specifications of pods, wherever they stand."""
    if isinstance(content, dict) and "containers" in content:
        yield content
    elif isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            yield from pods_in(each)


def test_no_pod_gets_variables_of_services() -> None:
    """A Service named `vllm`, `lmcache` or `ray` would set VLLM_PORT and its like to a URL."""
    files = [*FOLDER.rglob("*.yaml")]
    pods = [pod for file in files for content in yaml.safe_load_all(file.read_text()) for pod in pods_in(content)]
    assert len(pods) >= sum(len([*templates(name)]) for name in NAMES) > 0
    assert all(pod["enableServiceLinks"] is False for pod in pods)


def test_changed_args_make_a_new_cluster_and_changed_deployments_do_not() -> None:
    from cluster.manifests.rayservice import rayservice as made
    from cluster.manifests.served import Served

    def cluster(change: Json, deployments: list[Json]) -> Json:
        served = Served.read(CONFIGS / f"{NAMES[0]}.yaml")
        [application] = served.serve["applications"]
        application["args"]["controller"] |= change
        application["deployments"] = deployments
        found: Json = made(served)["spec"]["rayClusterConfig"]
        return found

    same = cluster({}, [])
    assert cluster({}, [{"name": "Generator", "num_replicas": 2}]) == same
    assert cluster({"searches": 7}, []) != same


def test_the_overlay_is_accepted_for_every_rayservice() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert all((FOLDER / path).is_file() for path in kustomization["resources"])
    [patch] = kustomization["patches"]
    added = yaml.safe_load((FOLDER / patch["path"]).read_text())
    assert added["kind"] == patch["target"]["kind"] == "RayService"
    for name in NAMES:
        base = rayservice(name)
        cluster = base["spec"]["rayClusterConfig"] | added["spec"]["rayClusterConfig"]
        assert faults({**base, "spec": {**base["spec"], "rayClusterConfig": cluster}}) == []


def assert_ray_start(words: list[str]) -> None:
    """Checks that `ray start` takes these options."""
    from ray.scripts.scripts import start

    start.make_context("start", words)


@pytest.mark.parametrize("name", NAMES)
def test_ray_takes_the_arguments_of_its_start(name: str) -> None:
    for _, _, params in templates(name):
        assert_ray_start([word for key, value in params.items() for word in shlex.split(f"--{key}={value}")])


def test_ray_up_accepts_its_file() -> None:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    schema = json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    file = yaml.safe_load((FOLDER / "ray_up.yaml").read_text())
    assert [error.message for error in Draft7Validator(schema).iter_errors(file)] == []
    for command in (*file["head_start_ray_commands"], *file["worker_start_ray_commands"]):
        for part in command.split(";"):
            words = shlex.split(part)
            if words[:2] == ["ray", "start"]:
                assert_ray_start(words[2:])


@pytest.mark.parametrize("hardware", ["cpu", "cuda"])
def test_hadolint_accepts_the_dockerfile_and_it_installs_the_lock(hardware: str) -> None:
    file = FOLDER / f"{hardware}.Dockerfile"
    hadolint = shutil.which("hadolint", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    assert hadolint is not None
    done = subprocess.run([hadolint, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    text = file.read_text()
    tools = (ROOT / "requirements" / f"{hardware}.dev.lock").read_text().splitlines()
    [uv] = [line for line in tools if line.startswith("uv==")]
    assert f"pip install --no-cache-dir {uv}\n" in text
    assert f"--extra {hardware} \\\n        --constraint requirements/{hardware}.lock" in text
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert all(f"COPY {package.rstrip('*')} {package.rstrip('*')}\n" in text for package in packages)
    assert text.endswith("USER 1000:1000\n")


@pytest.mark.parametrize("hardware", ["cpu", "cuda"])
def test_the_image_has_bytecode_and_no_tools(hardware: str) -> None:
    """A pod's root is read-only: what is not compiled in the image, each process compiles again."""
    build, _ = re.split(r"^FROM .*\n", (FOLDER / f"{hardware}.Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    [variables] = re.findall(r"^ENV (.*)$", build, re.MULTILINE)
    assert "UV_COMPILE_BYTECODE=1" in variables.split()
    assert build.index("ENV ") < build.index("RUN ")
    assert re.findall(r"--extra (\S+)", build) == [hardware]
    assert "--all-extras" not in build
    assert "dev.lock" not in build


@pytest.mark.parametrize("name", NAMES)
def test_engines_keep_compiled_code_in_a_writable_volume(name: str) -> None:
    """vLLM's VLLM_CACHE_ROOT, below HOME unless it is set."""
    [home] = {*re.findall(r"HOME=(\S+)", "".join(path.read_text() for path in FOLDER.glob("*.Dockerfile")))}
    for _, template, _ in templates(name):
        [container] = template["spec"]["containers"]
        given = {each["name"]: each.get("value") for each in container["env"]}
        cache = Path(given.get("VLLM_CACHE_ROOT") or Path(given.get("XDG_CACHE_HOME") or f"{home}/.cache", "vllm"))
        mounts = {Path(each["mountPath"]) for each in container["volumeMounts"] if not each.get("readOnly")}
        assert "HOME" not in given
        assert mounts & {cache, *cache.parents}
