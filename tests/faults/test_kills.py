"""Replicas and engines die at random under load: every search is answered, and what answers is the same tree."""

import random
import time
from collections import Counter

import psutil
import pytest
from ray import serve

from tests.faults.load import Load, told
from tests.faults.processes import Replica, below, replicas, running, shared_memory, unused_since
from tests.serve.application import REPAIR_S, Application, kill, problems, until

ENGINES = ("Generator", "ProcessRewardModel")
CLIENTS = 16
SEED = 7000


def test_kills_change_no_answer(whole: Application, pytestconfig: pytest.Config) -> None:
    seconds, least = pytestconfig.getoption("--kill-seconds"), pytestconfig.getoption("--least-kills")
    before = shared_memory()
    load = Load(whole, problems(24, seed=71), SEED)
    undisturbed = {index: load.once(whole.http, index) for index in range(24)}
    assert all(each.is_whole for each in undisturbed.values()), told(
        list(undisturbed.values()), lambda each: each.is_whole
    )
    killed: Counter[str] = Counter()
    bereft: list[psutil.Process] = []
    luck = random.Random(1)
    with load.of(CLIENTS):
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            victim = luck.choice(replicas(*ENGINES))
            bereft += below(victim.process)
            engine = luck.random() < 0.5
            kill((luck.choice(victim.engine) if engine and victim.engine else victim.process).pid)
            killed[f"{victim.deployment}'s {'engine' if engine else 'replica'}"] += 1
            until(lambda victim=victim: is_replaced(victim), f"a replica takes the place of {victim}", REPAIR_S)
    outcomes = load.outcomes
    print(
        f"{killed.total()} kills ({dict(killed)}), {len(outcomes)} searches, "
        f"{Counter(each.status for each in outcomes)}, "
        f"{sum(not each.is_whole for each in outcomes)} not whole, "
        f"longest {max(each.seconds for each in outcomes):.1f} s"
    )
    assert killed.total() >= least
    assert all(each.is_typed for each in outcomes), told(outcomes, lambda each: each.is_typed)
    answered = [each for each in outcomes if each.is_whole]
    assert all(each.tree == undisturbed[each.index].tree for each in answered), "a kill changed a tree"
    assert {each.index for each in answered} == set(undisturbed), "of each problem, one was searched to the end"
    # With another replica of each kind at work, a death is nothing that a search should notice.
    assert len(answered) == len(outcomes), told(outcomes, lambda each: each.is_whole)
    whole.wait_until_whole()
    until(lambda: not running(bereft), "what the dead had started has ended", 60.0)
    until(lambda: not unused_since(before), "nothing is left in shared memory", 30.0)


def is_replaced(victim: Replica) -> bool:
    """Whether as many replicas as before run, and the victim's is not among them."""
    states = serve.status().applications[Application.NAME].deployments[victim.deployment].replica_states
    at_work = replicas(victim.deployment)
    return (
        states == {"RUNNING": 2}
        and victim.process not in [each.process for each in at_work]
        and all(each.engine for each in at_work)
    )
