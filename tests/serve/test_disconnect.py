"""A client that hangs up ends its own search and no other; a caller of the generator that leaves ends its branches."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
import ray
from ray import serve

from deployments.calls.serve_calls import release
from scripts.embedded.tokenizer import build_tokenizer
from search.ports import Branch, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition, branch_seed
from tests.serve.application import Application, leave_once_it_runs, new_prefix, problems, request, until

LONG = {"strategy": "mcts", "iterations": 4000, "budget": {"seconds": 200}}


def leave_a_stream(application: Application, seed: int) -> None:
    """Reads up to the first scored step, then hangs up."""
    body = request(problems(1, seed=seed, level=5)[0], seed, stream=True, search=LONG)
    with application.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if '"search_event"' in line:
                assert application.status()["searches"] > 0, "the stream is live"
                return
    pytest.fail("the stream ended before a step was scored")


def leave_a_plain_request(application: Application, seed: int) -> None:
    """Hangs up once the search runs."""
    body = request(problems(1, seed=seed, level=5)[0], seed, search=LONG)
    leave_once_it_runs(application.http, "/v1/chat/completions", body)


def nothing_runs(application: Application) -> bool:
    status = application.status()
    return (
        status["searches"] == 0
        and status["integrity"] == []
        and all(replica["running"] == replica["waiting"] == 0 for replica in [*status["generator"], *status["prm"]])
    )


@pytest.mark.parametrize("leave", [leave_a_stream, leave_a_plain_request])
def test_an_abandoned_search_ends_everywhere(idle: Application, leave) -> None:  # type: ignore[no-untyped-def]
    leave(idle, 21)
    until(lambda: nothing_runs(idle), "nothing runs after the client has left")


def test_twenty_clients_hang_up_while_others_finish_undisturbed(idle: Application) -> None:
    others = problems(8, seed=22)
    undisturbed = idle.trees(others, seed=5)
    with ThreadPoolExecutor(1) as pool:
        disturbed = pool.submit(idle.trees, others, 5)
        for index in range(20):
            leave_a_stream(idle, 100 + index)
        trees = disturbed.result()
    assert [reply["tree"] for reply in trees] == [reply["tree"] for reply in undisturbed]
    until(lambda: nothing_runs(idle), "nothing runs after twenty clients have left")


def long_call() -> ExpandRequest:
    """Branches that take minutes unless they are aborted, but for the first."""
    # The embedded generator continues such digits greedily, up to the limit.
    prefix = (*new_prefix(), *build_tokenizer().encode("1" * 40, add_special_tokens=False))
    branches = tuple(Branch(index, branch_seed(3, (), index), 900 if index else 20) for index in range(256))
    expansion = ExpandItem((), prefix, branches)
    return ExpandRequest(uuid4().hex, (expansion,), Sampling(0.0), StopCondition.SOLUTION, Lane.DEMAND, 600.0)


def branches(application: Application, figure: str) -> int:
    """Number of ``alive`` or ``aborted`` branches over all generators."""
    return sum(replica[f"branches_{figure}"] for replica in application.status()["generator"])


def test_releasing_a_call_aborts_its_branches(idle: Application) -> None:
    async def begin() -> Any:
        stream = serve.get_deployment_handle("Generator", idle.NAME).options(stream=True).expand.remote(long_call())
        await anext(stream)
        return stream

    async def leave(stream: Any) -> None:
        release(stream)

    aborted = branches(idle, "aborted")
    stream = idle.run(begin())
    assert branches(idle, "alive") > 0
    idle.run(leave(stream))
    until(lambda: branches(idle, "alive") == 0, "no branch is left")
    assert branches(idle, "aborted") > aborted
    until(lambda: idle.status()["integrity"] == [], "nothing is left")


def test_a_caller_that_dies_leaves_nothing_running(idle: Application) -> None:
    @ray.remote(num_cpus=0)
    class Caller:
        async def begin(self, application: str, request: ExpandRequest) -> None:
            handle = serve.get_deployment_handle("Generator", application)
            self.stream = handle.options(stream=True).expand.remote(request)
            await anext(self.stream)

    aborted = branches(idle, "aborted")
    caller = Caller.remote()
    ray.get(caller.begin.remote(idle.NAME, long_call()))
    assert branches(idle, "alive") > 0
    ray.kill(caller)
    until(lambda: branches(idle, "alive") == 0, "no branch is left")
    assert branches(idle, "aborted") > aborted
    until(lambda: idle.status()["integrity"] == [], "nothing is left")
