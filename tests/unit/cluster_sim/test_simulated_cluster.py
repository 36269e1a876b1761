"""The simulated cluster: real searches, deterministic results, and pools that follow the load."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from benchmarks.cluster_sim import points
from benchmarks.cluster_sim.cluster import ClusterSize, PoolSize
from benchmarks.cluster_sim.points import Numbers, Surge, beam
from benchmarks.cluster_sim.virtual_time import run
from benchmarks.cluster_sim.workload import Language, problems_of, recorded
from search.answers.equivalence import AnswerMatcher
from search.ports import Branch, ChildGroup, ExpandItem, ExpandRequest, ScoreRequest, StopCondition
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.tree import StepEnd
from tests.unit.cluster_sim.simulated import COSTS, language

LANGUAGE = language()


@pytest.mark.parametrize(
    "search", [beam(8, 4), {"strategy": "self_consistency", "n": 8}, {"strategy": "mcts", "budget": {"nodes": 40}}]
)
def test_the_same_seed_gives_the_same_result(search: dict[str, object]) -> None:
    first, second = (points.served(COSTS, LANGUAGE, search, 4, 12, cores=2) for _ in range(2))
    assert first == second
    assert first["searches"] == 12
    assert first["left_over"] == []


def test_shared_cores_bound_the_total_cpu_time() -> None:
    """On a saturated machine, all programs together use exactly its cores."""
    found = points.served(COSTS, LANGUAGE, beam(16, 4), 16, 40, cores=2)
    around = COSTS.calls.proxy["search"] + COSTS.calls.client["search"] + COSTS.calls.others["search"]
    spent = found["searches"] * (sum(found["cpu_s_per_search"].values()) + around)
    spent += COSTS.calls.background * found["seconds"]
    assert 0.9 * 2 * found["seconds"] < spent <= 2 * found["seconds"] * 1.001


def test_more_clients_do_not_reduce_throughput() -> None:
    one, more = (points.served(COSTS, LANGUAGE, beam(8, 4), clients, 40, cores=2) for clients in (1, 8))
    assert more["searches_per_s"] > one["searches_per_s"]
    assert more["median_s"] > one["median_s"]


@pytest.mark.long
def test_throughput_scales_with_replicas_with_and_without_trees() -> None:
    one, four = (
        points.with_trees(COSTS, LANGUAGE, beam(8, 4), Numbers(number, number, number), 50 * number)
        for number in (1, 4)
    )
    assert four.figures["steady_per_s"] == pytest.approx(4 * one.figures["steady_per_s"], rel=0.2)

    rounds = [
        points.without_trees(COSTS, LANGUAGE, one.means, Numbers(number, number, number), 500 * number)["steady_per_s"]
        for number in (1, 10)
    ]
    assert rounds[1] == pytest.approx(10 * rounds[0], rel=0.1)


@pytest.mark.long
def test_the_proxy_of_a_node_limits_throughput() -> None:
    """A cluster has one proxy per node."""
    slow = COSTS.model_copy(update={"calls": COSTS.calls.model_copy(update={"proxy": {"search": 0.1}})})
    one, two = (
        points.with_trees(slow, LANGUAGE, beam(8, 4), Numbers(4, 4, 4, nodes), 100).figures["searches_per_s"]
        for nodes in (1, 2)
    )
    assert one == pytest.approx(10.0, rel=0.1)
    assert two == pytest.approx(20.0, rel=0.1)


@pytest.mark.long
def test_a_controller_limits_throughput() -> None:
    """With enough cores it is always busy, and never waits for another program."""
    alone = points.controller_limit(COSTS.calls, None, 48)
    assert alone.searches_per_s == pytest.approx(1 / alone.controller_s, rel=0.1)
    shared = points.controller_limit(COSTS.calls, 1, 48)
    assert shared.searches_per_s < alone.searches_per_s
    assert shared.controller_s == pytest.approx(alone.controller_s, rel=0.3)  # the number of items per call differs


@pytest.mark.long
def test_pools_follow_the_load_up_and_down_without_oscillation() -> None:
    size = ClusterSize(
        PoolSize(1, 12, upscale_delay_s=5, downscale_delay_s=60, start_s=10), PoolSize(4, 4), PoolSize(2, 2)
    )
    surge = Surge((0.2, 3.0, 0.2), 200.0)
    found = points.autoscaled(COSTS.slower(60.0), LANGUAGE, beam(4, 4), size, surge)
    history = found["history"]["generators"]
    counts = [1, *(number for _, number in history)]
    most = max(counts)
    assert most > 3
    assert counts[-1] < most / 2
    assert found["turns_in_a_step"]["generators"] <= 2
    up = next(at for at, number in history if number == most)
    assert surge.seconds < up < 2 * surge.seconds
    moves = [after > before for before, after in pairwise(counts)]
    assert sum(one != other for one, other in pairwise(moves)) <= 3
    assert found["left_over"] == []


class TestLanguage:
    def test_siblings_have_the_lengths_and_repeats_of_the_recording(self) -> None:
        prompt = LANGUAGE.prompt("3")
        branches = tuple(Branch(index, 7 + index, 512) for index in range(16))
        item = ExpandItem((), prompt, branches)
        children = [LANGUAGE.child("3", item, branch, StopCondition.STEP) for branch in branches]
        [family] = LANGUAGE.problem("3").levels[0]
        assert [len(child.steps[0].token_ids) for child in children] == [step.tokens for step in family]
        assert len({child.steps[0].text for child in children}) == len({step.text for step in family})

    def test_whole_solutions_end(self) -> None:
        item = ExpandItem((), LANGUAGE.prompt("0"), (Branch(0, 5, 10_000),))
        [*before, last] = LANGUAGE.child("0", item, item.branches[0], StopCondition.SOLUTION).steps
        assert last.end is StepEnd.END_OF_SEQUENCE
        assert {step.end for step in before} == {StepEnd.DELIMITER}
        cut = LANGUAGE.child("0", item, Branch(0, 5, 12), StopCondition.SOLUTION).steps
        assert sum(len(step.token_ids) for step in cut) == 12
        assert cut[-1].end is StepEnd.LENGTH

    def test_prompts_of_different_searches_share_no_token(self) -> None:
        assert not set(LANGUAGE.prompt("1")) & set(LANGUAGE.prompt("2"))

    def test_a_recorded_search_can_be_simulated(self) -> None:
        outcome = run(_searched(LANGUAGE))
        [problem] = problems_of(json.loads(json.dumps([recorded(outcome, 77)])))
        assert (problem.prompt_tokens, problem.nodes) == (77, len(outcome.tree))
        steps = [step for level in problem.levels for family in level for step in family]
        assert problem.generated_tokens == sum(step.tokens for step in steps)
        assert len(steps) == problem.nodes
        again = run(_searched(Language([problem])))
        assert again.selection.answer is not None
        assert again.cost.nodes == pytest.approx(problem.nodes, rel=0.5)


class _LanguagePorts:
    """Ports that return the steps of a language at once."""

    def __init__(self, language: Language) -> None:
        self._language = language

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        for item in request.expansions:
            steps = (self._language.child("0", item, branch, request.stop_condition) for branch in item.branches)
            yield ChildGroup(tuple(steps))

    async def score(self, request: ScoreRequest) -> list[list[float]]:
        return [[self._language.reward("0", text) for text in item.steps[-item.unscored :]] for item in request.items]


async def _searched(language: Language) -> SearchOutcome:
    ports = _LanguagePorts(language)
    environment = SearchEnvironment(ports, ports, 1024, AnswerMatcher())
    settings = parse_search({**beam(16, 4), "seed": 3})
    return await run_search("", language.prompt("0"), settings, environment, search_id="0")
