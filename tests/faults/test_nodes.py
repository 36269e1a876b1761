"""Three nodes, each with a generator and a cache server, and a shared second tier: nodes die, a server is stopped, the
second tier is full, and every search is answered with the undisturbed tree.

The nodes are raylets on this machine. The head has the reward model and the controller; second replicas of these would
help as on one node (test_kills.py, test_controller.py).
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster

from deployments.config import UNSEEN
from deployments.engines.settings import GeneratorSettings
from deployments.generator import Generator
from deployments.node_cache import NAMESPACE
from deployments.startup.nodes import Built
from kvstore.server import segments
from tests.faults.processes import assert_none_unused, below, running, shared_memory
from tests.serve.application import (
    REPAIR_S,
    Application,
    Json,
    cached_by_prefix,
    cached_by_salt,
    new_prefix,
    problems,
    until,
)
from tests.serve.application import running as running_application

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]
SEARCHES = 64
SEED = 500
FREED_WITHIN_S = 60.0
"""Seconds after the start of the node's replacement."""
SECOND_TIER_MB = 1024
NODE: Json = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}


class CacheServerOf(NamedTuple):
    """A node's cache server."""

    node_id: str
    pid: int
    ports: tuple[int, int]


class Nodes:
    """The cluster, the application on it, and its undisturbed trees."""

    def __init__(self, cluster: Cluster, application: Application, second_tier: Path) -> None:
        self.cluster = cluster
        self.application = application
        self.second_tier = second_tier
        self.problems = problems(SEARCHES, seed=91)
        self.undisturbed = self.trees()

    def trees(self, during: Callable[[], None] | None = None, seed: int = SEED) -> list[Json]:
        """Runs all searches at once over HTTP; each must finish and not be degraded."""
        replies = self.application.trees(self.problems, seed, during)
        ends = {(reply["search"]["stop_reason"], reply["search"]["degraded"]) for reply in replies}
        assert ends == {("finished", False)}
        return [reply["tree"] for reply in replies]

    def check(self, during: Callable[[], None], what: str) -> None:
        began = time.monotonic()
        trees = self.trees(during)
        print(f"{what}: {len(trees)} searches answered in {time.monotonic() - began:.1f} s")
        different = [index for index, (a, b) in enumerate(zip(trees, self.undisturbed, strict=True)) if a != b]
        assert not different, f"{what} changed the trees of {different}"

    def cache_servers(self) -> dict[str, CacheServerOf]:
        """Cache servers that report their state, by node id."""
        found = {}
        for each in ray.util.list_named_actors(all_namespaces=True):
            if each["namespace"] == NAMESPACE:
                try:
                    state = ray.get(ray.get_actor(**each).state.remote(), timeout=10)
                except (ray.exceptions.RayError, ValueError):  # its node is gone
                    continue
                node_id = each["name"].split(":")[2]
                if state["pid"]:
                    address = state["address"]
                    found[node_id] = CacheServerOf(node_id, state["pid"], (address.port, address.http_port))
        return found

    def wait_until_whole(self) -> None:
        self.application.wait_until_whole()
        until(self._all_share, "every node has a cache server, which knows the node's engine", REPAIR_S)

    def _all_share(self) -> bool:
        servers = self.cache_servers().values()
        return len(servers) == 3 and all(segments.mapped_by(each.pid) for each in servers)

    def kill_node_under_load(self, node: Any, what: str) -> None:
        """Kills the node's processes while all searches are under way, and replaces the node once they are answered."""
        self.wait_until_whole()
        servers = self.cache_servers()
        mine = servers.pop(node.node_id)
        victims = [*below(raylet(node)), *below(psutil.Process(mine.pid).parent())]
        engines = {segments.creator(name) for name in segments.mapped_by(mine.pid)}
        kept = [name for name in segments.segments() if segments.creator(name) in engines]
        assert kept, "the node's engine has its KV in shared memory"
        self.check(lambda: self.cluster.remove_node(node, allow_graceful=False), what)
        began = time.monotonic()
        self.cluster.add_node(**NODE, resources={"generator": 1})
        until(lambda: not running(victims), "the node's processes have ended", FREED_WITHIN_S)
        until(lambda: not set(kept) & segments.segments(), "its shared memory is free", FREED_WITHIN_S)
        until(lambda: all(is_free(port) for port in mine.ports), "its ports are free", FREED_WITHIN_S)
        assert time.monotonic() - began < FREED_WITHIN_S
        print(f"{what}: all that it had was free {time.monotonic() - began:.1f} s after its replacement's start")
        self.wait_until_whole()
        print(f"{what}: whole again {time.monotonic() - began:.1f} s after its replacement's start")
        now = self.cache_servers()
        assert {node_id: now.get(node_id) for node_id in servers} == servers, "the other nodes' servers never ended"


@pytest.fixture(scope="module")
def second_tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small file system for the second tier, if this user may mount one."""
    path = tmp_path_factory.mktemp("second_tier")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SECOND_TIER_MB}m", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    yield path
    if mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(scope="module")
def nodes(second_tier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    before = shared_memory()
    settings: Json = {
        "generator": {
            "replicas": {"min_replicas": 3, "max_replicas": 3, "resources": {"generator": 1}},
            "kv_cache_memory_bytes": 32 << 20,
        },
        "prm": {"replicas": {"resources": {"head": 0.1}}, "kv_cache_memory_bytes": 64 << 20},
        "controller": {"replicas": {"resources": {"head": 0.1}}, "limits": {"seconds": 240}},
        "cache": {"l1_size_gb": 0.25, "l2_adapters": [{"type": "fs", "base_path": str(second_tier)}]},
        "http": {"canary_every_s": 0},
    }
    with three_nodes() as cluster:
        keys = tmp_path_factory.mktemp("keys")
        with running_application(settings, keys, address=cluster.address) as application:
            application.wait_until_whole()
            nodes = Nodes(cluster, application, second_tier)
            nodes.wait_until_whole()
            yield nodes
            servers = nodes.cache_servers().values()
            serve.delete(Application.NAME)
            until(lambda: not any(psutil.pid_exists(each.pid) for each in servers), "all cache servers end", 60.0)
    assert_none_unused(before)


@contextmanager
def three_nodes() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "resources": {"head": 1, "generator": 1}})
    try:
        for _ in range(2):
            cluster.add_node(**NODE, resources={"generator": 1})
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def test_each_node_has_a_generator_and_a_cache_server_of_its_own(nodes: Nodes) -> None:
    assert set(nodes.cache_servers()) == {node.node_id for node in nodes.cluster.list_all_nodes()}
    assert len(set(nodes.cache_servers().values())) == 3
    assert any(nodes.second_tier.rglob("*.data")), "the second tier is used"
    nodes.check(lambda: None, "undisturbed")


def test_prefixes_are_shared_between_nodes_for_the_same_key_only(nodes: Nodes) -> None:
    application = nodes.application

    def everywhere(cached: Callable[[], list[int]]) -> tuple[list[int], bool]:
        """Cached tokens of several calls, and whether every node had one of them."""
        before = [replica["branches_finished"] for replica in application.status()["generator"]]
        found = cached()
        after = [replica["branches_finished"] for replica in application.status()["generator"]]
        return found, all(now > then for then, now in zip(before, after, strict=True))

    def read_everywhere() -> bool:
        prefix = new_prefix()
        (first, *others), on_all = everywhere(lambda: cached_by_prefix(application, 16, prefix))
        assert first == 0
        # Other tenants have not sent it before: what a node, its cache server or the second tier has is not theirs.
        strangers = [f"stranger {number}" for number in range(16)]
        found, strange_on_all = everywhere(lambda: cached_by_salt(application, prefix, strangers))
        assert found == [0] * len(strangers)
        again, _ = everywhere(lambda: cached_by_salt(application, prefix, [""] * 4))
        return on_all and strange_on_all and min(*others, *again) >= 288

    until(read_everywhere, "every node reads a prefix that one has computed", 90.0)


def test_a_stopped_cache_server_changes_no_tree(nodes: Nodes) -> None:
    servers = nodes.cache_servers()
    node_id, stopped = min(servers.items())
    began = time.monotonic()
    try:
        nodes.check(lambda: os.kill(stopped.pid, signal.SIGSTOP), "SIGSTOP of a cache server")
        until(lambda: nodes.cache_servers().get(node_id, stopped).pid != stopped.pid, "it is replaced", REPAIR_S)
        print(f"SIGSTOP of a cache server: replaced {time.monotonic() - began:.1f} s after the searches' start")
    finally:
        if psutil.pid_exists(stopped.pid):
            os.kill(stopped.pid, signal.SIGCONT)
    now = nodes.cache_servers()
    assert now.pop(node_id).ports == stopped.ports, "its engines find the new one where the old one was"
    assert now == {each: server for each, server in servers.items() if each != node_id}


def test_a_full_second_tier_changes_no_tree(nodes: Nodes) -> None:
    if not os.path.ismount(nodes.second_tier):
        pytest.skip("this user cannot mount a small file system")
    rest = nodes.second_tier / "rest"

    def fill() -> None:
        with rest.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        assert os.statvfs(nodes.second_tier).f_bfree * os.statvfs(nodes.second_tier).f_bsize < 1 << 20

    before = nodes.cache_servers()
    full = nodes.trees(fill, SEED + SEARCHES)  # with other seeds, since stored prefixes would not be written again
    stored = sum(1 for _ in nodes.second_tier.rglob("*.data"))
    nodes.check(lambda: None, "a full second tier")
    assert nodes.cache_servers() == before
    rest.unlink()
    assert nodes.trees(seed=SEED + SEARCHES) == full
    until(lambda: sum(1 for _ in nodes.second_tier.rglob("*.data")) > stored, "it is written again", 60.0)


def test_a_worker_node_is_killed(nodes: Nodes) -> None:
    nodes.kill_node_under_load(min(nodes.cluster.worker_nodes, key=lambda node: node.node_id), "a killed node")


def test_the_node_of_the_first_cache_server_is_killed(nodes: Nodes) -> None:
    """No node's server was started from another node's, so none ends with another."""
    servers = nodes.cache_servers()
    workers = [node for node in nodes.cluster.worker_nodes if node.node_id in servers]
    first = min(workers, key=lambda node: psutil.Process(servers[node.node_id].pid).create_time())
    nodes.kill_node_under_load(first, "the killed node of the oldest cache server")
    nodes.check(lambda: None, "after two replacements")


def test_differences_of_a_node_are_named(nodes: Nodes, tmp_path: Path) -> None:
    settings = GeneratorSettings()
    odd = nodes.cluster.add_node(**NODE, resources={"odd": 1}, env_vars={"RAY_SERVE_THROUGHPUT_OPTIMIZED": "0"})
    here = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": os.environ["RAY_SERVE_THROUGHPUT_OPTIMIZED"]}
    nowhere = settings.model_copy(update={"model": str(tmp_path / "model")})
    cases: Sequence[tuple[GeneratorSettings, Built, str]] = (
        (settings, Built(here), "RAY_SERVE_THROUGHPUT_OPTIMIZED is '0', but '1' where the application was built"),
        (settings, Built({}, "another"), "does not hold the model that it holds where"),
        (nowhere, Built({}, "another"), f"no model at '{nowhere.model}'"),
    )
    try:
        for number, (asked, built, message) in enumerate(cases):
            name = f"odd-{number}"
            application = Generator.options(ray_actor_options={"num_cpus": 0, "resources": {"odd": 0.1}}).bind(
                asked, None, UNSEEN, "ERROR", built
            )
            with pytest.raises(RuntimeError):
                serve.run(application, name=name, route_prefix=None)
            reason = serve.status().applications[name].deployments["Generator"].message
            serve.delete(name)
            assert f"node 127.0.0.1 ({odd.node_id[:8]}): " in reason, reason
            assert message in reason
    finally:
        nodes.cluster.remove_node(odd)


def raylet(node: Any) -> psutil.Process:
    (process,) = node.all_processes["raylet"]
    return psutil.Process(process.process.pid)


def is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False
