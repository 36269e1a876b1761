"""Calls to replicas leave no objects of Serve in the controller until a full garbage collection."""

from typing import Any

from deployments.calls.dismantle import CANCELLED_S
from tests.serve.application import Application, problems, until


def test_calls_are_freed_without_the_garbage_collector(idle: Application) -> None:
    """Answered calls are freed at once; calls that a search cancels at its end, a little later."""

    def begin(_: Any) -> None:
        import gc

        gc.collect()
        gc.disable()

    def left(_: Any) -> int:
        import gc

        from ray.serve._private.replica_result import gRPCReplicaResult

        return sum(type(each) is gRPCReplicaResult for each in gc.get_objects())

    def end(_: Any) -> None:
        import gc

        gc.enable()

    idle.in_replicas("SearchController", begin)
    try:
        for seed, problem in enumerate(problems(3, seed=31)):
            reply = idle.chat(problem, seed)
            assert reply["search"]["answer"] is not None
        until(lambda: idle.in_replicas("SearchController", left) == [0], "no call is left", CANCELLED_S + 15)
    finally:
        idle.in_replicas("SearchController", end)
