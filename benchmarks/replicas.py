"""Looking into the replicas of an application that runs."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def in_replicas(deployment: str, what: Callable[[Any], T], application: str = "default") -> list[T]:
    """What a function, which may not be one of a module, returns in the process of each of a deployment's replicas; Ray
    has been started."""
    import ray

    prefix = f"SERVE_REPLICA::{application}#{deployment}#"
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    actors = [ray.get_actor(name, namespace="serve") for name in names if name.startswith(prefix)]
    returned: list[T] = ray.get([actor.__ray_call__.remote(what) for actor in actors], timeout=30)
    return returned
