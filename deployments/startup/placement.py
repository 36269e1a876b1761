"""Plans engines that name no share of a GPU (``replicas.num_gpus``) onto the GPUs of the cluster.

Each replica gets whole GPUs if there are enough of them; otherwise the engines share one GPU, split by
`kvstore.memory.device_memory`. The settings then say what each engine takes: Ray's ``num_gpus`` is vLLM's
``gpu_memory_utilization``, and on a shared GPU ``kv_cache_memory_bytes`` is what it leaves beside weights and working
memory.

``min_replicas`` are planned. Autoscaling adds replicas of the same size, as far as there are GPUs for them.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from deployments.config import AppConfig
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.several import SeveralSettings
from deployments.engines.settings import GPU_SHARE, EngineSettings, ReplicaSettings
from deployments.engines.vllm_build import runs_on_cpu
from deployments.engines.yaml_values import as_meant
from deployments.startup.gpus import GpuNode, gpu_nodes
from deployments.startup.memory_plan import role_of
from kvstore.memory.device_memory import USED, DoesNotFit, Role, split

logger = logging.getLogger("banyan.startup")

E = TypeVar("E", bound=EngineSettings)


class PlacementError(ValueError):
    """Engines do not fit the GPUs of the cluster, or cannot be planned onto them. A line for each problem, with the
    path of its setting."""


class _Pool(NamedTuple):
    """A deployment with engines."""

    path: str
    replicas: ReplicaSettings
    engines: Mapping[str, EngineSettings]
    """Those of a replica, by their path."""

    @property
    def is_open(self) -> bool:
        """Whether it names no share."""
        return self.replicas.num_gpus is None

    @property
    def is_planned(self) -> bool:
        """Whether its engines get shares here: also several engines that name none of the GPU of their replica."""
        return all(engine.replicas.num_gpus is None for engine in self.engines.values())

    @property
    def gpus(self) -> int:
        """GPUs that one replica has for itself, or has a share of."""
        named = self.replicas.num_gpus
        return math.ceil(named) if named else max(engine.gpus for engine in self.engines.values())

    def wanted(self, replicas: int) -> list[int]:
        """GPUs for this number of replicas: for each of them, or for as many as share one."""
        named = self.replicas.num_gpus
        together = int(1 / named) if named and named < 1 else 1
        return [self.gpus] * math.ceil(replicas / together)


def on_this_cluster(config: AppConfig) -> AppConfig:
    """The settings with the engines planned onto the cluster's GPUs; unchanged where engines run on CPUs. Call it in a
    process of the cluster.

    Raises:
        PlacementError: as `placed`.
        GpuError: a node did not say how much memory its GPUs have.
    """
    return config if runs_on_cpu() else placed(config, gpu_nodes())


def placed(config: AppConfig, nodes: Sequence[GpuNode]) -> AppConfig:
    """The settings with the engines planned onto these nodes, for a vLLM that is built for GPUs.

    Raises:
        PlacementError: there is no GPU, too few, or too little memory for an engine.
    """
    engines = config.engines
    pools = []
    if "generator" in engines:  # a backend has none
        pools.append(_Pool("generator", config.generator.replicas, {"generator": engines.pop("generator")}))
    if engines or config.prm.replicas.num_gpus:  # a function has no engine
        pools.append(_Pool("prm", config.prm.replicas, engines))
    if not pools:
        return config
    _refuse(problem for pool in pools for problem in _unplannable(pool, nodes))
    if not nodes:  # every pool names its share: nodes with GPUs will join
        return config
    roles = _roles(config)
    together = _together(pools, nodes)
    _refuse(problem for pool in pools for problem in _too_large(pool, roles, nodes))
    alone = [[pool] for pool in pools if pool not in together and pool.engines and pool.is_planned]
    for group in [together, *alone] if together else alone:
        config = _with(config, _planned(group, roles, nodes, group is together))
    most = [gpus for pool in pools for gpus in pool.wanted(pool.replicas.max_replicas)]
    if any(pool.replicas.max_replicas > pool.replicas.min_replicas for pool in pools) and not _hold(nodes, most):
        logger.warning("max_replicas: more than the cluster has GPUs for; the last ones wait for nodes that join")
    return config


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _refuse(problems: Iterable[str]) -> None:
    if found := [*problems]:
        raise PlacementError("\n".join(found))


def _unplannable(pool: _Pool, nodes: Sequence[GpuNode]) -> Iterator[str]:
    where = f"{pool.path}.replicas.num_gpus"
    build = "the installed vLLM is the build for GPUs"
    if pool.engines and pool.replicas.num_gpus == 0:
        yield (
            f"{where}: {build}, and an engine without a GPU of its own would take one that Ray gives to others: leave "
            "num_gpus out, or install the build for CPUs (make setup BANYAN_HARDWARE=cpu)"
        )
    unnamed = [path for path, engine in pool.engines.items() if engine.replicas.num_gpus is None]
    if unnamed and (not pool.is_planned or 0 < (pool.replicas.num_gpus or 0) < 1):
        yield f"{unnamed[0]}.replicas.num_gpus: must be set where replicas or other models of prm name their share"
    if not pool.is_open:
        return
    if not nodes:
        yield (
            f"{where}: {build}, and no node of this cluster has a GPU: install the build for CPUs (make setup "
            "BANYAN_HARDWARE=cpu), or set num_gpus if nodes with GPUs will join"
        )
    if pool.replicas.resources:
        yield f"{where}: must be set with replicas.resources: the GPUs of all nodes are planned alike"
    if len(pool.engines) > 1 and pool.gpus > 1:
        yield f"{where}: must be set where one of several reward models takes more than one GPU"


def _roles(config: AppConfig) -> dict[str, Role | EngineStartError]:
    """The memory needs of each engine, or why they are not known."""
    found: dict[str, Role | EngineStartError] = {}
    for path, engine in config.engines.items():
        try:
            found[path] = role_of(path, engine)._replace(fixed_kv_bytes=engine.kv_cache_memory_bytes)
        except EngineStartError as error:
            found[path] = error
    return found


def _together(pools: Sequence[_Pool], nodes: Sequence[GpuNode]) -> list[_Pool]:
    """The pools that share a GPU; none if there are enough GPUs.

    Raises:
        PlacementError: there are too few even so.
    """
    if _hold(nodes, [gpus for pool in pools for gpus in pool.wanted(pool.replicas.min_replicas)]):
        return []
    sharing = [pool for pool in pools if pool.is_open and pool.gpus == 1]
    others = [gpus for pool in pools if pool not in sharing for gpus in pool.wanted(pool.replicas.min_replicas)]
    if sharing and sum(node.gpus for node in nodes) == sum(others) + 1 and _hold(nodes, [*others, 1]):
        return sharing
    if not any(pool.is_open for pool in pools):
        return []  # Ray waits for the GPUs
    wanted = ", ".join(f"{pool.gpus} for each of {pool.replicas.min_replicas} {pool.path}" for pool in pools)
    raise PlacementError(
        f"{' and '.join(f'{pool.path}.replicas' for pool in pools)}: {wanted} are more GPUs than the cluster has "
        f"({', '.join(f'{node.gpus} on {node.name}' for node in nodes)}). Engines are made to share a GPU only if one "
        "GPU is enough for all of them: lower min_replicas, or set num_gpus and kv_cache_memory_bytes"
    )


def _hold(nodes: Sequence[GpuNode], wanted: Sequence[int]) -> bool:
    """Whether the nodes have room for engines that want these numbers of GPUs, each of them on one node."""
    free = [node.gpus for node in nodes]
    for gpus in sorted(wanted, reverse=True):
        index = max(range(len(free)), key=free.__getitem__)
        if free[index] < gpus:
            return False
        free[index] -= gpus
    return True


def _too_large(pool: _Pool, roles: Mapping[str, Role | EngineStartError], nodes: Sequence[GpuNode]) -> Iterator[str]:
    """Engines with a share of their own whose weights and KV alone are more than that share of any GPU they may get."""
    fitting = [node for node in nodes if node.gpus >= pool.gpus and node.resources >= pool.replicas.resources.keys()]
    if not fitting:  # nodes will join
        return
    memory = max(node.memory_bytes for node in fitting)
    for path, engine in pool.engines.items():
        role, named = roles[path], engine.replicas.num_gpus
        if isinstance(role, EngineStartError) or not named:  # its start will tell
            continue
        share = named if named < 1 else _vllms_share(engine)
        kv = role.least_kv_bytes if role.fixed_kv_bytes is None else role.fixed_kv_bytes
        if role.weight_bytes + kv > share * memory:
            yield (
                f"{path}.replicas.num_gpus: {named:g} is too small: on each GPU weights take {_gib(role.weight_bytes)} "
                f"and KV {_gib(kv)}, and {share:.0%} of the largest GPU are {_gib(share * memory)}"
            )


def _planned(
    group: Sequence[_Pool], roles: Mapping[str, Role | EngineStartError], nodes: Sequence[GpuNode], shared: bool
) -> dict[str, EngineSettings]:
    """Settings of the engines of ``group`` with their shares, by path. ``shared``: whether all replicas are on one GPU.

    Raises:
        PlacementError: they do not fit, or are to share a GPU though their memory is not known.
    """
    engines = {path: engine for pool in group for path, engine in pool.engines.items()}
    alone = len(engines) == 1 and not shared
    unknown = [role for path in engines if isinstance(role := roles[path], EngineStartError)]
    if not alone:
        _refuse(f"{error}: to share a GPU it needs replicas.num_gpus and kv_cache_memory_bytes" for error in unknown)
        _refuse(
            f"{path}.engine_args.gpu_memory_utilization: set replicas.num_gpus instead, and kv_cache_memory_bytes"
            for path, engine in engines.items()
            if "gpu_memory_utilization" in engine.engine_args
        )
    copies = [
        role
        for pool in group
        for path in pool.engines
        for _ in range(pool.replicas.min_replicas if shared else 1)
        if isinstance(role := roles[path], Role)
    ]
    used = min(map(_vllms_share, engines.values())) if alone else USED
    memory = min(node.memory_bytes for node in nodes if node.gpus >= group[0].gpus)
    try:
        shares = split(copies, memory, used)
    except DoesNotFit as error:
        names = ", ".join(f"{path}.model" for path in engines)
        raise PlacementError(f"{names}: too large for {'a GPU' if alone else 'one GPU together'}: {error}") from error
    if alone:  # vLLM measures what is left for its KV
        return {path: _changed(engine, group[0].gpus, engine.kv_cache_memory_bytes) for path, engine in engines.items()}
    return {each.role.name: _changed(engines[each.role.name], each.device, each.kv_bytes) for each in shares}


def _vllms_share(engine: EngineSettings) -> float:
    """Share of a whole GPU that vLLM uses."""
    named = as_meant(float, engine.engine_args.get("gpu_memory_utilization"))
    return named if isinstance(named, float | int) and 0 < named <= 1 else GPU_SHARE


def _changed(engine: E, num_gpus: float, kv_bytes: int | None) -> E:
    replicas = engine.replicas.model_copy(update={"num_gpus": num_gpus})
    return engine.model_copy(update={"replicas": replicas, "kv_cache_memory_bytes": kv_bytes})


def _with(config: AppConfig, engines: Mapping[str, EngineSettings]) -> AppConfig:
    """The settings with these engines in place of those at their paths."""
    prm = config.prm
    if isinstance(prm, SeveralSettings) and engines.keys() - {"generator"}:
        members = [
            member.model_copy(update={"prm": engines.get(f"prm.of.{index}.prm", member.prm)})
            for index, member in enumerate(prm.of)
        ]
        shares = round(sum(member.prm.replicas.num_gpus or 0 for member in members), 3)
        replicas = prm.replicas.model_copy(update={"num_gpus": prm.replicas.num_gpus or shares})
        prm = prm.model_copy(update={"of": tuple(members), "replicas": replicas})
    return config.model_copy(
        update={"generator": engines.get("generator", config.generator), "prm": engines.get("prm", prm)}
    )
