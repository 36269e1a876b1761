"""A configuration as a cluster serves it, and what its pods need for it."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.launch.yaml_file import read_yaml
from deployments.config import AppConfig
from deployments.engines.settings import EngineSettings

GIB = 1 << 30
KEYS_FILE = "/etc/banyan/api.keys"
OBJECT_STORE_GIB = 1
"""Ray's object store, in shared memory. Banyan's calls are small and do not use it."""
ENGINE_GIB = 8
"""Host memory for each GPU of an engine, or for an engine without one: Python, CUDA's libraries, weights on their way
to the device."""
SERVER_GIB = 1
"""Memory of an LMCache server beside the KV that it keeps: half a gibibyte, rounded up."""
NCCL_GIB = 1
"""Shared memory for each GPU of an engine over several."""
CPU_KV_GIB = 1
"""KV of an engine on a CPU where the settings name none (256 MiB), rounded up."""
ENGINE_CPUS = 4
"""Cores of a replica with an engine, for each of its GPUs."""
SERVICE_CPUS = 2
"""Cores for controllers and proxies, which run on the same nodes."""


@dataclass(frozen=True)
class Group:
    """Nodes of one kind. A node has room for one replica of each of the engines that the group is for."""

    name: str
    least: int
    most: int
    gpus: int
    cpus: int
    memory_gib: int
    """All of it, shared memory included: Kubernetes counts that as the pod's."""
    shm_gib: int
    """Size of ``/dev/shm``."""


@dataclass(frozen=True)
class Served:
    """One configuration."""

    name: str
    serve: dict[str, Any]
    """Serve's own configuration for a cluster."""
    config: AppConfig
    groups: tuple[Group, ...]

    @classmethod
    def read(cls, path: Path) -> "Served":
        """Reads a configuration for one machine and changes what is different on a cluster: the address, the keys, and
        on which nodes the engines run."""
        serve: dict[str, Any] = read_yaml(path)
        [application] = serve["applications"]
        args: dict[str, Any] = application["args"]
        config = AppConfig.model_validate(args)
        groups = groups_of(config)
        for engine, settings in config.engines.items():
            [group] = {each.name for each in groups} & {engine, SHARED}
            replicas = args[engine].setdefault("replicas", {})
            replicas.setdefault("num_gpus", gpus_of(settings))
            replicas["resources"] = {group: 1 if group == engine else 0.5}
        args["http"] = {"api_keys_file": KEYS_FILE, **args.get("http", {})}
        serve["proxy_location"] = "EveryNode"
        serve["http_options"]["host"] = "0.0.0.0"
        return cls(path.stem, serve, AppConfig.model_validate(args), groups)

    @property
    def args_digest(self) -> str:
        """Changes with every setting that restarts replicas."""
        [application] = self.serve["applications"]
        return hashlib.sha256(json.dumps(application["args"], sort_keys=True).encode()).hexdigest()[:16]


SHARED = "engines"
"""Group of nodes on which generator and reward model share a GPU."""


def groups_of(config: AppConfig) -> tuple[Group, ...]:
    generator, prm = config.generator, config.prm
    if not isinstance(generator, EngineSettings):
        raise ValueError("generator.url: no group of nodes is made for a backend; write it by hand")
    if not isinstance(prm, EngineSettings):
        raise ValueError(f"prm.family: no group of nodes is made for {prm.family}; write it by hand")
    shares = [gpus_of(generator), gpus_of(prm)]
    if all(shares) and sum(shares) <= 1:
        return (_group(SHARED, config, generator, prm),)
    return (_group("generator", config, generator), _group("prm", config, prm))


def gpus_of(engine: EngineSettings) -> float:
    """GPUs of the engine in its pod: whole ones where the configuration leaves it open."""
    named = engine.replicas.num_gpus
    return engine.gpus if named is None else named


def _group(name: str, config: AppConfig, *engines: EngineSettings) -> Group:
    gpus = math.ceil(sum(map(gpus_of, engines)))
    shm = OBJECT_STORE_GIB + (NCCL_GIB * gpus if gpus > 1 else 0)
    memory = sum(ENGINE_GIB * max(1, math.ceil(gpus_of(engine))) for engine in engines)
    if config.cache.enabled and config.generator in engines:
        memory += SERVER_GIB + math.ceil(config.cache.l1_size_gb)
        if not gpus:  # engines on a CPU show the server their KV blocks in shared memory
            shm += math.ceil((config.generator_engine.kv_cache_memory_bytes or CPU_KV_GIB * GIB) / GIB)
    return Group(
        name,
        max(engine.replicas.min_replicas for engine in engines),
        max(engine.replicas.max_replicas for engine in engines),
        gpus,
        SERVICE_CPUS + ENGINE_CPUS * max(gpus, len(engines)),
        memory + shm,
        shm,
    )
