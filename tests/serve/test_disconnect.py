"""A client that goes away takes its search along, and nobody else's."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serve.application import Application, problems, request, until

LONG = {"strategy": "beam_search", "n": 64, "m": 4, "max_depth": 40}


def leave_a_stream(application: Application, seed: int) -> None:
    """Reads until the first scored step, then hangs up."""
    body = request(problems(1, seed=seed, level=5)[0], seed, stream=True, search=LONG)
    with application.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if '"search_event"' in line:
                return
    pytest.fail("the stream ended before a step was scored")


def leave_a_plain_request(application: Application, seed: int) -> None:
    """Hangs up once the search runs."""
    body = request(problems(1, seed=seed, level=5)[0], seed, search=LONG)
    impatient = httpx.Timeout(60.0, read=0.3)
    with application.client(impatient) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=body)


def nothing_runs(application: Application) -> bool:
    status = application.status()
    return (
        status["searches"] == 0
        and status["integrity"] == []
        and all(replica["running"] == replica["waiting"] == 0 for replica in [*status["generator"], *status["prm"]])
    )


@pytest.mark.parametrize("leave", [leave_a_stream, leave_a_plain_request])
def test_a_left_search_ends_everywhere(idle: Application, leave) -> None:  # type: ignore[no-untyped-def]
    leave(idle, 21)
    until(lambda: nothing_runs(idle), "nothing runs after the client has left", 10.0)


def test_twenty_leave_while_others_finish_unharmed(idle: Application) -> None:
    others = problems(8, seed=22)
    undisturbed = idle.trees(others, seed=5)
    with ThreadPoolExecutor(1) as pool:
        disturbed = pool.submit(idle.trees, others, 5)
        for index in range(20):
            leave_a_stream(idle, 100 + index)
        trees = disturbed.result()
    assert [reply["tree"] for reply in trees] == [reply["tree"] for reply in undisturbed]
    until(lambda: nothing_runs(idle), "nothing runs after twenty clients have left", 10.0)
