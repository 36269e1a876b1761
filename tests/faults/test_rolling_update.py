"""All replicas are replaced while searches run, and every search is answered."""

from collections import Counter

import pytest
from ray import serve

from deployments.app import build
from tests.faults.load import Load, failures
from tests.faults.processes import replicas
from tests.serve.application import Application, cache_servers, problems

DEPLOYMENTS = ("Generator", "ProcessRewardModel", "SearchController")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_search_is_answered_during_an_update(whole: Application) -> None:
    load = Load(whole, problems(16, seed=84), seed=500)
    undisturbed = [load.once(whole.http, index) for index in range(16)]
    before, servers = {each.process for each in replicas(*DEPLOYMENTS)}, cache_servers(whole)
    limits = whole.config.controller.limits.model_copy(update={"seconds": whole.config.controller.limits.seconds + 1})
    controller = whole.config.controller.model_copy(update={"limits": limits})
    generator = whole.config.generator.model_copy(update={"max_step_s": whole.config.generator.max_step_s + 1})
    changed = whole.config.model_copy(update={"controller": controller, "generator": generator})
    with load.of(clients=8):
        serve.run(build(changed), name=whole.NAME)
    outcomes = load.outcomes
    print(f"{len(outcomes)} searches, {Counter(each.status for each in outcomes)}")
    assert not before & {each.process for each in replicas(*DEPLOYMENTS)}, "all replicas are new"
    assert cache_servers(whole) == servers != [], "what is computed alike is shared with what was before the update"
    assert all(each.is_whole for each in outcomes), failures(outcomes, lambda each: each.is_whole)
    assert all(each.tree == undisturbed[each.index].tree for each in outcomes)
