"""Looking into the replicas of an application that runs."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def in_replicas(deployment: str, what: Callable[[Any], T], application: str = "default") -> list[T]:
    """What a function, which may not be one of a module, returns of the object that answers calls, in the process of
    each of a deployment's replicas; Ray has been started."""
    import ray

    prefix = f"SERVE_REPLICA::{application}#{deployment}#"
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    actors = [ray.get_actor(name, namespace="serve") for name in names if name.startswith(prefix)]

    def inside(actor: Any) -> T:
        return what(actor._replica_impl._user_callable_wrapper.user_callable)

    returned: list[T] = ray.get([actor.__ray_call__.remote(inside) for actor in actors], timeout=30)
    return returned
