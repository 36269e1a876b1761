"""The node's cache server dies or is stopped: searches are answered with the same trees."""

import os
import signal
import time

import psutil
import pytest

from tests.serve.application import REPAIR_S, Application, cache_servers, cached_by_prefix, problems, until


@pytest.mark.parametrize("what", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_no_search_and_no_tree_depends_on_the_cache_server(whole: Application, what: signal.Signals) -> None:
    questions = problems(8, seed=82)
    undisturbed = whole.trees(questions, seed=300)
    servers = cache_servers(whole)
    assert servers
    gone = {server.pid for server in servers}
    try:
        began = time.monotonic()
        disturbed = whole.trees(questions, seed=300, during=lambda: [os.kill(pid, what) for pid in gone])
        print(f"{what.name}: {len(questions)} searches took {time.monotonic() - began:.1f} s")
        assert [reply["tree"] for reply in disturbed] == [reply["tree"] for reply in undisturbed]
        assert all(reply["search"]["stop_reason"] == "finished" for reply in disturbed)
        until(
            lambda: any(server.pid not in gone and is_awake(server) for server in cache_servers(whole)),
            "another server has taken its place",
            REPAIR_S,
        )
        print(f"{what.name}: another server after {time.monotonic() - began:.1f} s")
        assert [reply["tree"] for reply in whole.trees(questions, seed=300)] == [each["tree"] for each in undisturbed]
        until(lambda: shared(whole), "the engines have noticed the server's return, at a heartbeat", REPAIR_S)
    finally:
        for server in servers:
            if server.is_running():
                server.send_signal(signal.SIGCONT)


def shared(application: Application) -> bool:
    """Whether a generator reads what the other one has computed."""
    return all(tokens >= 288 for tokens in cached_by_prefix(application, calls=12)[1:])


def is_awake(server: psutil.Process) -> bool:
    try:
        return server.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
