"""What calls to replicas leave in the controller until everything is collected: nothing that Serve keeps for a call."""

from typing import Any

from tests.serve.application import Application, problems


def test_calls_that_were_answered_are_freed_at_once(idle: Application) -> None:
    def begin(_: Any) -> None:
        import gc

        gc.collect()
        gc.disable()

    def calls_left(_: Any) -> int:
        import gc

        left = sum(type(each).__name__ == "gRPCReplicaResult" for each in gc.get_objects())
        gc.enable()
        return left

    (_,) = idle.in_replicas("SearchController", begin)
    try:
        for seed, problem in enumerate(problems(3, seed=31)):
            reply = idle.chat(problem, seed)
            assert reply["search"]["answer"] is not None
    finally:
        (left,) = idle.in_replicas("SearchController", calls_left)
    assert left <= 3  # of calls that a search gave up at its end; it makes more than ten
