"""Replicas and engines are killed at random under load: every search is answered, always with the same tree."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import psutil
import pytest
from ray import serve

from tests.faults.load import Load, Outcome, failures, without_writing_ahead
from tests.faults.processes import Replica, assert_none_unused, below, replicas, running, shared_memory
from tests.serve.application import BEAM, REPAIR_S, Application, kill, problems, until

ENGINES = ("Generator", "ProcessRewardModel")
CLIENTS = 16
SEED = 7000
VOTE = {"strategy": "self_consistency", "n": 16, "risk": 0.1, "rounds": [2, 2, 4]}
FUSE = {"strategy": "fuse", "n": 8, "k": 2, "rounds": 2}


class Kill(NamedTuple):
    """One kill, from its time until another replica was at work (monotonic seconds)."""

    what: str
    began: float
    ended: float

    def report(self, outcomes: Sequence[Outcome]) -> str:
        during = [each for each in outcomes if each.began < self.ended and each.began + each.seconds > self.began]
        incomplete = [each for each in during if not each.is_whole]
        last = max((each.began + each.seconds - self.began for each in incomplete), default=0.0)
        longest = max((each.seconds for each in during), default=0.0)
        return (
            f"{self.what}: replaced after {self.ended - self.began:.1f} s, during {len(during)} searches (the longest "
            f"{longest:.1f} s), {len(incomplete)} of them incomplete, the last {last:.1f} s after the kill"
        )


def test_kills_change_no_answer(whole: Application, pytestconfig: pytest.Config) -> None:
    seconds, least = pytestconfig.getoption("--kill-seconds"), pytestconfig.getoption("--least-kills")
    before = shared_memory()
    load = Load(whole, problems(24, seed=71), SEED, [BEAM, VOTE, FUSE])
    with without_writing_ahead(whole):
        undisturbed = {index: load.once(whole.http, index) for index in range(24)}
    assert all(each.is_whole for each in undisturbed.values()), failures(
        list(undisturbed.values()), lambda each: each.is_whole
    )
    kills: list[Kill] = []
    descendants: list[psutil.Process] = []
    rng = random.Random(1)
    with load.of(CLIENTS):
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at or len(kills) < least:
            victim = rng.choice(replicas(*ENGINES))
            descendants += below(victim.process)
            engine = bool(victim.engine) and rng.random() < 0.5
            began = time.monotonic()
            kill((rng.choice(victim.engine) if engine else victim.process).pid)
            until(lambda victim=victim: is_replaced(victim), f"a replica takes the place of {victim}", REPAIR_S)
            kills.append(Kill(f"{victim.deployment}'s {'engine' if engine else 'replica'}", began, time.monotonic()))
            # A suspect does not run on the last engine of its kind: it gets its turns before the next kill.
            until(partial(load.none_since_before, began), "the searches that were hit have ended", load.deadline_s)
            # A controller cannot tell a kill from a crash. By the eighth request that it blames, it would refuse all.
            whole.in_replicas("SearchController", forget_suspects)
    outcomes = load.outcomes
    for each in kills:
        print(each.report(outcomes))
    print(f"{len(outcomes)} searches, {Counter(each.status for each in outcomes)}, {len(kills)} kills")
    assert all(each.is_typed for each in outcomes), failures(outcomes, lambda each: each.is_typed)
    # A kill makes suspects, and one that hits a suspect again, alone at its engine, is proof enough. Until it is
    # forgotten, the same question is refused.
    blamed = [each for each in outcomes if each.status == 500 and each.body["error"]["code"] == "engine_ended_twice"]
    assert sum("this request" in each.body["error"]["message"] for each in blamed) <= len(kills)
    outcomes = [each for each in outcomes if each not in blamed]
    answered = [each for each in outcomes if each.is_whole]
    assert all(each.tree == undisturbed[each.index].tree for each in answered), "a kill changed a tree"
    assert {each.index for each in answered} == set(undisturbed), "of each problem, one was searched to the end"
    # Each pool has another replica, so no search should notice a kill.
    assert len(answered) == len(outcomes), failures(outcomes, lambda each: each.is_whole)
    whole.wait_until_whole()
    until(lambda: not running(descendants), "processes below killed replicas have ended", 60.0)
    assert_none_unused(before)


def forget_suspects(controller: Any) -> None:
    suspects = controller._service.suspects
    suspects._harmful.clear()
    suspects._suspected.clear()


def is_replaced(victim: Replica) -> bool:
    """Whether as many replicas as before run, and the victim is not one of them."""
    states = serve.status().applications[Application.NAME].deployments[victim.deployment].replica_states
    at_work = replicas(victim.deployment)
    return (
        states == {"RUNNING": 2}
        and len([each for each in at_work if each.engine]) == 2
        and victim.process not in [each.process for each in at_work]
    )
