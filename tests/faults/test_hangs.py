"""A replica's process stands still: Serve's health checks find it, and every search is answered.

Engines that stand still are in `tests/serve/test_failures.py`, and measured by `benchmarks.hangs`.
"""

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
