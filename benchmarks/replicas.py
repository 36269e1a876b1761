"""Runs a function inside the replicas of a running application."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def in_replicas(deployment: str, function: Callable[[Any], T], application: str = "default") -> list[T]:
    """Runs a function in the process of each of a deployment's replicas, and returns the results.

    Its argument is the object that answers the replica's calls. It may be a closure. Ray must be running.
    """
    import ray

    prefix = f"SERVE_REPLICA::{application}#{deployment}#"
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    actors = [ray.get_actor(name, namespace="serve") for name in names if name.startswith(prefix)]

    def call(actor: Any) -> T:
        return function(actor._replica_impl._user_callable_wrapper.user_callable)

    returned: list[T] = ray.get([actor.__ray_call__.remote(call) for actor in actors], timeout=30)
    return returned
