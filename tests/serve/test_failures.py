"""What dies or hangs comes back, and no search is lost or changed by it; more of that in `tests/faults`.

Last by name's order among the heavy ones on purpose: each test ends with the application whole again.
"""

import psutil

from tests.serve.application import (
    REPAIR_S,
    Application,
    cache_servers,
    cached_by_prefix,
    is_engine,
    kill,
    problems,
    until,
)


def engine_of(replica_pid: int) -> psutil.Process:
    """The process of a replica's engine."""
    children = psutil.Process(replica_pid).children(recursive=True)
    [engine] = [child for child in children if is_engine(child)]
    return engine


def test_a_prefix_is_computed_once_for_all_replicas(idle: Application) -> None:
    before = [replica["branches_finished"] for replica in idle.status()["generator"]]
    cached = cached_by_prefix(idle, calls=16)
    after = [replica["branches_finished"] for replica in idle.status()["generator"]]
    assert all(now > then for then, now in zip(before, after, strict=True)), "both replicas were asked"
    # The first call computes all of it; without LMCache the other replica's first call would as well.
    assert cached[0] == 0
    assert all(tokens >= 288 for tokens in cached[1:]), cached


def test_losing_the_cache_server_loses_no_search(idle: Application) -> None:
    servers = cache_servers(idle)
    assert servers
    gone = {server.pid for server in servers}

    def kill_servers() -> None:
        for server in servers:
            kill(server.pid)

    replies = idle.trees(problems(32, seed=41), seed=100, during=kill_servers)
    assert all(reply["search"]["stop_reason"] == "finished" for reply in replies)
    until(lambda: any(server.pid not in gone for server in cache_servers(idle)), "the server is back", REPAIR_S)

    def shared_again() -> bool:
        cached = cached_by_prefix(idle, calls=12)
        return all(tokens >= 288 for tokens in cached[1:])

    until(shared_again, "the engines have noticed the server's return, at a heartbeat", REPAIR_S)


def test_an_engine_that_hangs_is_replaced_and_changes_no_tree(idle: Application) -> None:
    questions = problems(16, seed=43)
    undisturbed = idle.trees(questions, seed=300)
    replica = idle.replica_pids("Generator")[0]
    engine = engine_of(replica)
    disturbed = idle.trees(questions, seed=300, during=engine.suspend)
    assert all(reply["search"]["stop_reason"] == "finished" for reply in disturbed)
    assert all(not reply["search"]["degraded"] for reply in disturbed)
    assert [reply["tree"] for reply in disturbed] == [reply["tree"] for reply in undisturbed]
    until(lambda: not psutil.pid_exists(replica), "the replica has ended", REPAIR_S)
    until(lambda: not engine.is_running(), "its engine has ended", REPAIR_S)
    until(lambda: len(idle.replica_pids("Generator")) == 2, "another is there", REPAIR_S)


def test_searches_do_without_a_prm_that_hangs_until_it_is_back(idle: Application) -> None:
    questions = problems(16, seed=44)
    [replica] = idle.replica_pids("ProcessRewardModel")
    engine = engine_of(replica)
    without = idle.trees(questions, seed=400, during=engine.suspend)
    assert any(reply["search"]["degraded"] for reply in without)
    assert all(reply["choices"][0]["message"]["content"] for reply in without)
    # The first ones have waited for it; these no longer do.
    assert all(reply["search"]["degraded"] for reply in idle.trees(questions, seed=500))
    until(lambda: not engine.is_running(), "its engine has ended", REPAIR_S)
    until(lambda: not idle.chat(questions[0], 600)["search"]["degraded"], "the PRM is back", REPAIR_S, every_s=1.0)
