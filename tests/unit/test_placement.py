"""Engines that name no share of a GPU, planned onto the GPUs of a cluster: what Ray and vLLM are told, and refusals."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import run
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.launch.config_file import app_config, read_config
from cluster.manifests.__main__ import CONFIGS
from deployments import app
from deployments.config import AppConfig
from deployments.engines.errors import EngineStartError
from deployments.engines.settings import GeneratorSettings
from deployments.startup import gpus, memory_plan, placement
from deployments.startup.gpus import GpuError, GpuNode, gpu_nodes
from deployments.startup.memory_plan import WORKING_BYTES, role_of
from deployments.startup.placement import PlacementError, placed
from tests.unit.manifests.published import MODELS, as_on_a_gpu

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
MEMORY = {24: int(22.5 * GIB), 80: 79 * GIB}
"""Bytes that torch finds on a GPU of so many GB."""
FILES = {"serve_config": ROOT / "serve_config.yaml"} | {path.stem: path for path in CONFIGS.glob("*.yaml")}
CLUSTERS = [(count, gb) for count in (1, 2, 8) for gb in MEMORY]


def node(count: int, gb: int, *resources: str) -> GpuNode:
    return GpuNode(f"10.0.0.{count}", count, MEMORY[gb], frozenset(resources))


def configuration(name: str) -> AppConfig:
    return app_config(read_config(FILES[name]))


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's build for GPUs, and the published models' configurations and sizes."""
    as_on_a_gpu(tmp_path, monkeypatch)
    monkeypatch.setattr(placement, "runs_on_cpu", lambda: False)


class Told(NamedTuple):
    """What Ray and vLLM are told of one engine."""

    num_gpus: float
    kv_bytes: int | None


def told(config: AppConfig) -> dict[str, Told]:
    return {
        path: Told(engine.replicas.num_gpus or 0, engine.kv_cache_memory_bytes)
        for path, engine in config.engines.items()
    }


SHARED = {
    ("serve_config", 24): (0.626, 0.323),
    ("serve_config", 80): (0.650, 0.299),
    ("qwen2.5-1.5b_math-prm-7b", 24): (0.255, 0.694),
    ("qwen2.5-1.5b_math-prm-7b", 80): (0.525, 0.424),
    ("llama3.2-1b_rlhflow-8b", 80): (0.394, 0.555),
    ("qwen3-8b_skywork-7b", 80): (0.709, 0.240),
}
"""Shares of generator and reward model, where they share one GPU."""
WHOLE = {"llama3.3-70b_rlhflow-8b": (4, 1)}
"""GPUs of generator and reward model with GPUs of their own, where it is not one each."""
REFUSED = {
    ("llama3.2-1b_rlhflow-8b", 1, 24): "generator.model, prm.model: too large for one GPU together",
    ("qwen3-8b_skywork-7b", 1, 24): "generator.model, prm.model: too large for one GPU together",
    ("llama3.3-70b_rlhflow-8b", 1, 24): "4 for each of 1 generator, 1 for each of 1 prm are more GPUs",
    ("llama3.3-70b_rlhflow-8b", 1, 80): "4 for each of 1 generator, 1 for each of 1 prm are more GPUs",
    ("llama3.3-70b_rlhflow-8b", 2, 24): "4 for each of 1 generator, 1 for each of 1 prm are more GPUs",
    ("llama3.3-70b_rlhflow-8b", 2, 80): "4 for each of 1 generator, 1 for each of 1 prm are more GPUs",
    ("llama3.3-70b_rlhflow-8b", 8, 24): "generator.model: too large for a GPU",
    **{("embedded-cpu", *cluster): "generator.replicas.num_gpus: the installed vLLM" for cluster in CLUSTERS},
}
"""What does not fit, and how the message begins."""


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_memory_of_published_models_is_as_by_hand(name: str, devices: int) -> None:
    engine = GeneratorSettings(model=name, engine_args={"tensor_parallel_size": devices})
    role = role_of("generator", engine)
    assert abs(role.weight_bytes - MODELS[name].weight_bytes(devices)) <= 2
    heads = max(1, MODELS[name].kv_heads // devices) * devices  # no device has less than a head
    assert role.geometry == replace(MODELS[name], kv_heads=heads).geometry(devices)


@pytest.mark.parametrize(
    ("changed", "factor"),
    [({"dtype": "float32"}, 2), ({"engine_args": {"kv_cache_dtype": "fp8"}}, 0.5), ({"block_size": 64}, 4)],
)
def test_the_kv_of_a_token_depends_on_its_type(changed: dict[str, Any], factor: float) -> None:
    plain, other = (role_of("generator", GeneratorSettings(model="Qwen/Qwen3-8B", **more)) for more in ({}, changed))
    assert other.geometry.bytes_per_block == factor * plain.geometry.bytes_per_block


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"speculative_config": {"model": "small"}}, "the KV of a draft model .* is not counted"),
        (
            {"kv_cache_dtype": "int8_per_token_head"},
            "int8_per_token_head has a layout that depends on the attention backend",
        ),
        ({"cpu_offload_gb": 4}, "engine_args.cpu_offload_gb changes the memory of the weights"),
        ({"quantization": "fp8"}, "engine_args.quantization changes the memory of the weights"),
        (
            {"hf_overrides": {"layer_types": ["linear_attention"] * 36}},
            "it has layers of an unsupported type: linear_attention",
        ),
        ({"hf_overrides": {"mamba_d_state": 16}}, "it has layers without attention"),
        ({"hf_overrides": {"index_topk": 2048}}, "it stores an index in addition to its latent vectors"),
    ],
)
def test_memory_that_is_not_known_is_not_guessed(arguments: dict[str, Any], reason: str) -> None:
    engine = GeneratorSettings(model="Qwen/Qwen3-8B", engine_args=arguments)
    with pytest.raises(
        EngineStartError, match=f"generator.model: the memory of 'Qwen/Qwen3-8B' is not known: .*{reason}"
    ):
        role_of("generator", engine)


def test_weights_that_are_stored_quantized_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "stored_numbers", lambda *_: Counter(I32=1000, BF16=10))
    assert role_of("generator", GeneratorSettings(model="Qwen/Qwen3-8B")).weight_bytes == 4020


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: "{} of {} GB".format(*cluster))
@pytest.mark.parametrize("name", FILES)
def test_every_configuration_is_planned_onto_the_gpus_there_are(name: str, cluster: tuple[int, int]) -> None:
    given, (count, gb) = configuration(name), cluster
    if reason := REFUSED.get((name, *cluster)):
        with pytest.raises(PlacementError, match=reason):
            placed(given, [node(count, gb)])
        return
    found = placed(given, [node(count, gb)])
    shares = tuple(each.num_gpus for each in told(found).values())
    if name == "one-24gb-gpu":  # it names its shares
        assert found == given
    elif count == 1:
        assert shares == pytest.approx(SHARED[name, gb], abs=0.0015)
        for path, engine in found.engines.items():
            # Ray's number is what weights, working memory and KV take, so vLLM's share holds its KV.
            role = role_of(path, given.engines[path])
            taken = role.weight_bytes + WORKING_BYTES + (engine.kv_cache_memory_bytes or 0)
            assert 0 <= (engine.replicas.num_gpus or 0) * MEMORY[gb] - taken <= MEMORY[gb] / 1000
    else:
        assert shares == WHOLE.get(name, (1, 1))
        assert {each.kv_bytes for each in told(found).values()} == {None}  # vLLM measures it


@pytest.mark.parametrize("cluster", [(0, 24), *CLUSTERS], ids=lambda cluster: "{} of {} GB".format(*cluster))
@pytest.mark.parametrize("name", FILES)
def test_ray_reserves_what_was_planned_when_the_application_is_built(
    name: str, cluster: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    count, gb = cluster
    nodes = [node(count, gb)] if count else []
    monkeypatch.setattr(app.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(app, "require_authenticated_cluster", lambda http: None)
    monkeypatch.setattr(placement, "gpu_nodes", lambda: nodes)
    given = configuration(name).model_copy(update={"controller": AppConfig().controller})
    if (name, *cluster) in REFUSED or (not count and name != "one-24gb-gpu"):
        with pytest.raises(PlacementError):
            app.build(given)
        return
    reserved = built_gpus(given)
    assert reserved == {path: each.num_gpus for path, each in told(placed(given, nodes)).items()}
    assert all(reserved.values())


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"one-24gb-gpu"}))
def test_with_vllms_build_for_cpus_no_gpu_is_reserved_or_looked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(app.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(app, "require_authenticated_cluster", lambda http: None)
    monkeypatch.setattr(placement, "runs_on_cpu", lambda: True)
    monkeypatch.setattr(placement, "gpu_nodes", lambda: pytest.fail("the cluster was asked for its GPUs"))
    given = configuration(name).model_copy(update={"controller": AppConfig().controller})
    assert set(built_gpus(given).values()) == {0}
    assert placement.on_this_cluster(given) is given


def built_gpus(config: AppConfig) -> dict[str, float]:
    """GPUs that Ray reserves for a replica of generator and reward model."""
    controller = app.build(config)._bound_deployment
    parts = dict(zip(("generator", "prm"), controller.init_args[1:3], strict=True))
    return {path: part._bound_deployment.ray_actor_options["num_gpus"] for path, part in parts.items()}


def refusal(nodes: Sequence[GpuNode], **given: Any) -> str:
    with pytest.raises(PlacementError) as refused:
        placed(AppConfig.model_validate(given), nodes)
    return str(refused.value)


def test_an_engine_beside_a_gpu_that_reserves_none_is_refused() -> None:
    """Ray leaves all GPUs visible to a replica that reserves none."""
    message = refusal([node(1, 24)], prm={"replicas": {"num_gpus": 0}})
    assert message.startswith("prm.replicas.num_gpus: the installed vLLM is the build for GPUs")
    assert message.count("\n") == 0
    function = {"family": "function", "function": "a:b", "replicas": {"num_gpus": 0}}
    assert told(placed(AppConfig.model_validate({"prm": function}), [node(1, 24)])) == {"generator": Told(1, None)}


def test_without_a_gpu_the_build_for_gpus_is_refused_unless_nodes_are_to_join() -> None:
    message = refusal([])
    assert [line.partition(":")[0] for line in message.splitlines()] == [
        "generator.replicas.num_gpus",
        "prm.replicas.num_gpus",
    ]
    named = {"replicas": {"num_gpus": 1}}
    config = AppConfig.model_validate({"generator": named, "prm": named})
    assert placed(config, []) == config


def test_what_is_missing_is_told_in_bytes() -> None:
    message = refusal([GpuNode("small", 1, 4 * GIB)])
    assert message.startswith(
        "generator.model, prm.model: too large for one GPU together: the device has 4,294,967,296 bytes, and"
    )
    assert "weights and working memory need 4,300," in message
    large = {"model": "meta-llama/Llama-3.3-70B-Instruct"}
    message = refusal([node(8, 80)], generator={**large, "replicas": {"num_gpus": 1}})
    assert message == (
        "generator.replicas.num_gpus: 1 is too small: on each GPU weights take 131.5 GiB and KV 0.3 GiB, "
        "and 92% of the largest GPU are 72.7 GiB"
    )


def test_a_named_share_is_compared_with_the_gpus_that_its_resources_allow() -> None:
    large = {"model": "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data", "max_model_len": 100_000, "family": "label_turns"}
    replicas = {"num_gpus": 1, "resources": {"large": 1}}
    given = {"generator": {"replicas": {"num_gpus": 1}}, "prm": {**large, "replicas": replicas}}
    assert refusal([node(2, 24, "large")], **given).startswith("prm.replicas.num_gpus: 1 is too small")
    for nodes in ([node(2, 24)], [node(2, 24), node(1, 80, "large")]):  # a large one will join, or is there
        assert placed(AppConfig.model_validate(given), nodes) == AppConfig.model_validate(given)


def test_engines_that_are_placed_by_resources_name_their_gpus() -> None:
    message = refusal([node(1, 24)], generator={"replicas": {"resources": {"large": 1}}})
    assert message == (
        "generator.replicas.num_gpus: must be set with replicas.resources: the GPUs of all nodes are planned alike"
    )


def test_each_replica_of_the_least_number_has_a_gpu_or_a_share_of_the_one_there_is() -> None:
    replicas = {"replicas": {"min_replicas": 2, "max_replicas": 2}}
    config = AppConfig.model_validate({"generator": replicas, "prm": replicas})
    assert {each.num_gpus for each in told(placed(config, [node(2, 24), node(2, 80)])).values()} == {1}
    shares = [each.num_gpus for each in told(placed(config, [node(1, 24)])).values()]
    assert 0.9 < 2 * sum(shares) <= 0.95
    message = refusal([node(2, 24)], generator=replicas, prm=replicas)
    assert (
        "1 for each of 2 generator, 1 for each of 2 prm are more GPUs than the cluster has (2 on 10.0.0.2)" in message
    )
    grows = AppConfig.model_validate({"generator": {"replicas": {"max_replicas": 8}}})
    assert {each.num_gpus for each in told(placed(grows, [node(2, 24)])).values()} == {1}


def test_an_engine_over_several_gpus_needs_them_on_one_node() -> None:
    given = {"generator": {"engine_args": {"tensor_parallel_size": 2}}}
    assert told(placed(AppConfig.model_validate(given), [node(2, 24), node(1, 24)]))["generator"].num_gpus == 2
    assert "(1 on 10.0.0.1, 1 on 10.0.0.1, 1 on 10.0.0.1)" in refusal([node(1, 24)] * 3, **given)


def test_the_gpus_that_an_engine_may_get_count() -> None:
    over_four = {"model": "meta-llama/Llama-3.3-70B-Instruct", "engine_args": {"tensor_parallel_size": 4}}
    found = placed(AppConfig.model_validate({"generator": over_four}), [node(1, 24), node(4, 80)])
    assert [each.num_gpus for each in told(found).values()] == [4, 1]


def test_vllms_own_share_of_a_whole_gpu_is_kept_and_on_a_shared_one_refused() -> None:
    arguments = {"engine_args": {"gpu_memory_utilization": 0.1}}
    config = AppConfig.model_validate({"generator": arguments})
    assert placed(config, [node(2, 24)]).generator.engine_args == arguments["engine_args"]
    assert refusal([GpuNode("small", 2, 20 * GIB)], generator=arguments).startswith("generator.model: too large")
    assert refusal([node(1, 24)], generator=arguments).startswith(
        "generator.engine_args.gpu_memory_utilization: set replicas.num_gpus instead"
    )


def test_several_reward_models_share_the_gpu_of_their_replica() -> None:
    function = {"prm": {"family": "function", "function": "a:b"}}
    prm: dict[str, Any] = {"family": "several", "of": [{"prm": {}}, function, {"prm": {}}]}
    for count, of_generator in ((1, 0.452), (2, 1)):
        found = placed(AppConfig.model_validate({"prm": prm}), [node(count, 24)])
        generator, *members = told(found).values()
        assert generator.num_gpus == pytest.approx(of_generator, abs=0.002)
        assert found.prm.replicas.num_gpus == pytest.approx(sum(each.num_gpus for each in members), abs=0.001)
        assert all(each.kv_bytes for each in members)
        assert sum(each.num_gpus for each in members) <= 0.95
    named = AppConfig.model_validate({"prm": {**prm, "replicas": {"num_gpus": 1}}})
    assert placed(named, [node(2, 24)]).prm.replicas.num_gpus == 1
    part = {**prm, "replicas": {"num_gpus": 0.5}}
    assert refusal([node(1, 24)], prm=part).startswith("prm.of.0.prm.replicas.num_gpus: must be set where")


def test_kv_memory_that_the_settings_name_is_kept() -> None:
    given = {"generator": {"kv_cache_memory_bytes": GIB}}
    shared = told(placed(AppConfig.model_validate(given), [node(1, 24)]))
    assert GIB - (1 << 20) < (shared["generator"].kv_bytes or 0) <= GIB
    assert (shared["prm"].kv_bytes or 0) > 15 * GIB
    assert told(placed(AppConfig.model_validate(given), [node(2, 24)]))["generator"] == Told(1, GIB)


def test_engines_of_unknown_memory_get_whole_gpus_and_no_shares(tmp_path: Path) -> None:
    """Such as a model of a type that transformers does not know, or of files that are not within reach."""
    (tmp_path / "model").mkdir()
    given = {"generator": {"model": str(tmp_path / "model")}}
    assert told(placed(AppConfig.model_validate(given), [node(2, 24)]))["generator"] == Told(1, None)
    message = refusal([node(1, 24)], **given)
    assert message.startswith(f"generator.model: the memory of '{tmp_path}/model' is not known: ")
    assert message.endswith("to share a GPU it needs replicas.num_gpus and kv_cache_memory_bytes")


@given(
    counts=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    replicas=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    tensor=st.sampled_from([1, 2, 4]),
    gib=st.integers(2, 80),
)
@settings(max_examples=60)
def test_a_plan_reserves_no_more_than_there_is(
    counts: list[int], replicas: tuple[int, int], tensor: int, gib: int
) -> None:
    given: dict[str, Any] = {
        name: {"replicas": {"min_replicas": number, "max_replicas": number}}
        for name, number in zip(("generator", "prm"), replicas, strict=True)
    }
    given["generator"]["engine_args"] = {"tensor_parallel_size": tensor}
    nodes = [GpuNode(f"node {index}", count, gib * GIB) for index, count in enumerate(counts)]
    try:
        shares = [each.num_gpus for each in told(placed(AppConfig.model_validate(given), nodes)).values()]
    except PlacementError:
        return
    taken = sum(share * number for share, number in zip(shares, replicas, strict=True))
    assert taken <= sum(counts) + 1e-9
    assert all(share in (1, tensor) or share < 1 for share in shares)


def test_the_plan_imports_no_vllm_and_the_shipped_models_need_no_hub() -> None:
    program = """
import socket, sys
from deployments.config import AppConfig
from deployments.startup import memory_plan, placement
from deployments.startup.gpus import GpuNode
socket.socket.connect = None
placement.placed(AppConfig(), [GpuNode("here", 1, 24 << 30)])
sys.exit("vllm" in sys.modules)
"""
    ended = run([sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


class Cluster:
    """Ray, as far as `gpu_nodes` asks it: nodes with two GPUs each, whose tasks give these answers."""

    def __init__(self, *answers: list[int] | Exception) -> None:
        self._answers = {f"{index:056x}": answer for index, answer in enumerate(answers, 1)}

    def nodes(self) -> list[dict[str, Any]]:
        gpus, none = {"GPU": 2.0, "CPU": 8.0}, {"CPU": 8.0}
        alive = [
            {"NodeID": node_id, "NodeManagerAddress": f"node {index}", "Alive": True, "Resources": gpus}
            for index, node_id in enumerate(self._answers, 1)
        ]
        return [{"Alive": False, "Resources": gpus}, {"Alive": True, "Resources": none}, *alive]

    def remote(self, **_: int) -> Any:
        return lambda _: SimpleNamespace(
            options=lambda scheduling_strategy: SimpleNamespace(remote=lambda: scheduling_strategy.node_id)
        )

    def wait(self, answers: list[str], num_returns: int, timeout: float) -> None:
        assert (num_returns, timeout) == (len(answers), gpus.ANSWER_S)

    def get(self, answer: str, timeout: float) -> list[int]:
        assert timeout == 0
        if isinstance(found := self._answers[answer], Exception):
            raise found
        return found


def test_the_smallest_gpu_of_a_node_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "ray", Cluster([80 * GIB, 24 * GIB], [48 * GIB, 48 * GIB, 8 * GIB]))
    named = frozenset({"GPU", "CPU"})
    assert gpu_nodes() == [GpuNode("node 1", 2, 24 * GIB, named), GpuNode("node 2", 2, 48 * GIB, named)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([24 * GIB], "node 1: Ray counts 2 GPUs there, and torch finds 1"),
        (gpus.GetTimeoutError(), "node 1: the memory of its GPUs is not known: no answer within 120 s"),
        (gpus.RayError("no torch"), "node 1: the memory of its GPUs is not known: no torch"),
    ],
)
def test_a_node_that_does_not_tell_its_gpus_is_named(
    answer: list[int] | Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "ray", Cluster(answer))
    with pytest.raises(GpuError, match=message):
        gpu_nodes()
