"""A replica's process or its engine is stopped: health checks notice it, and every search is answered.

`benchmarks.hangs` measures how soon.
"""

import psutil
import pytest

from tests.faults.processes import replicas, running
from tests.serve.application import REPAIR_S, Application, problems, until


@pytest.mark.long
@pytest.mark.parametrize("deployment", ["Generator", "ProcessRewardModel"])
def test_a_process_that_hangs_is_replaced(whole: Application, deployment: str) -> None:
    questions = problems(16, seed=45)
    undisturbed = whole.trees(questions, seed=700)
    victim, *others = replicas(deployment)
    victim.process.suspend()
    replies = whole.trees(questions, seed=700)
    assert all(reply["search"]["stop_reason"] == "finished" for reply in replies)
    assert [reply["tree"] for reply in replies] == [reply["tree"] for reply in undisturbed]
    until(lambda: not running([victim.process, *victim.engine]), "the replica and its engine have ended", REPAIR_S)
    known = {victim.process, *(each.process for each in others)}
    until(lambda: not {each.process for each in replicas(deployment)} <= known, "another is there", REPAIR_S)


def test_an_engine_that_hangs_is_replaced_and_changes_no_tree(whole: Application) -> None:
    questions = problems(16, seed=43)
    undisturbed = whole.trees(questions, seed=300)
    victim, *others = replicas("Generator")
    disturbed = whole.trees(questions, seed=300, during=lambda: suspend(victim.engine))
    assert all(reply["search"]["stop_reason"] == "finished" for reply in disturbed)
    assert all(not reply["search"]["degraded"] for reply in disturbed)
    assert [reply["tree"] for reply in disturbed] == [reply["tree"] for reply in undisturbed]
    until(lambda: not running([victim.process, *victim.engine]), "the replica and its engine have ended", REPAIR_S)
    known = {victim.process, *(each.process for each in others)}
    until(lambda: not {each.process for each in replicas("Generator")} <= known, "another is there", REPAIR_S)


def test_searches_do_without_prms_that_hang_until_they_are_back(whole: Application) -> None:
    questions = problems(16, seed=44)
    victims = replicas("ProcessRewardModel")

    def suspend_all() -> None:
        for victim in victims:
            suspend(victim.engine)

    without = whole.trees(questions, seed=400, during=suspend_all)
    assert any(reply["search"]["degraded"] for reply in without)
    assert all(reply["choices"][0]["message"]["content"] for reply in without)
    # The first searches waited for the PRMs; these no longer do.
    assert all(reply["search"]["degraded"] for reply in whole.trees(questions, seed=500))
    until(lambda: not running([each for victim in victims for each in victim.engine]), "they have ended", REPAIR_S)
    until(lambda: not whole.chat(questions[0], 600)["search"]["degraded"], "a PRM is back", REPAIR_S, every_s=1.0)


def suspend(engine: tuple[psutil.Process, ...]) -> None:
    for process in engine:
        process.suspend()
