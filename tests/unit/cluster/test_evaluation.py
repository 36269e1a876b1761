"""Every problem is sent once under its own seed, in any order; failures are counted."""

import asyncio

import pytest
from endpoint_stand_in import Endpoint

from cluster.client.client import Client
from cluster.client.errors import TooLate
from cluster.client.replies import Completion, Question
from cluster.client.retries import Retries
from cluster.evaluation.loop import Plan, evaluate, problem_seed
from cluster.evaluation.problem_files import EvalProblem
from cluster.evaluation.search_field import SearchFieldError, search_field
from cluster.evaluation.statistics import Row, summarize

PROBLEMS = [EvalProblem(f"p/{index}", f"question {index}", str(index)) for index in range(12)]


def run(endpoint: Endpoint, problems: list[EvalProblem], plan: Plan, strategy: str = "beam_search") -> dict[str, Row]:
    rows: list[Row] = []

    async def go() -> None:
        async with Client(endpoint.url, timeout_s=10, retries=Retries(3, backoff_s=0.01)) as client:
            await evaluate(client.ask, problems, strategy, plan, rows.append)

    asyncio.run(go())
    assert len({row.problem_id for row in rows}) == len(rows) == len(problems)
    return {row.problem_id: row for row in rows}


def test_answers_are_graded_by_their_value(endpoint: Endpoint) -> None:
    endpoint.answers = {"half?": "\\frac{1}{2}", "wrong?": "3"}
    problems = [EvalProblem("half", "half?", "0.5"), EvalProblem("wrong", "wrong?", "4")]
    rows = run(endpoint, problems, Plan())
    assert rows["half"].right
    assert not rows["wrong"].right
    cost = rows["half"].cost
    assert cost is not None
    assert (cost.generated_tokens, cost.cached_tokens, cost.prm_calls) == (30, 12, 2)


def test_a_right_answer_that_lost_the_vote_was_in_the_pool(endpoint: Endpoint) -> None:
    endpoint.answers = {"lost?": "3", "won?": "4", "missed?": "3"}
    endpoint.others = {"lost?": ["5", "8/2"], "missed?": ["5"]}
    rows = run(endpoint, [EvalProblem(each, f"{each}?", "4") for each in ("lost", "won", "missed")], Plan())
    assert [rows[each].right for each in ("lost", "won", "missed")] == [False, True, False]
    assert [rows[each].in_pool for each in ("lost", "won", "missed")] == [True, True, False]
    assert summarize("beam_search", rows.values(), 1.0).pool == pytest.approx(2 / 3)


def test_order_and_concurrency_change_no_request(endpoint: Endpoint) -> None:
    def seeds() -> dict[str, int]:
        asked = {body["messages"][0]["content"]: body["seed"] for body in endpoint.requests}
        endpoint.requests.clear()
        return asked

    run(endpoint, PROBLEMS, Plan(seed=3, in_flight=1))
    one_by_one = seeds()
    run(endpoint, PROBLEMS[::-1], Plan(seed=3, in_flight=8))
    assert seeds() == one_by_one
    run(endpoint, PROBLEMS, Plan(seed=4))
    assert seeds() != one_by_one


def test_exactly_the_allowed_number_of_problems_is_in_flight() -> None:
    in_flight = most = 0
    rows: list[Row] = []

    async def go() -> None:
        three = asyncio.Barrier(3)

        async def ask(_question: Question) -> Completion:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            async with asyncio.timeout(10):
                await three.wait()
            in_flight -= 1
            raise TooLate("enough seen")

        await evaluate(ask, PROBLEMS, "beam_search", Plan(in_flight=3), rows.append)

    asyncio.run(go())
    assert most == 3
    assert len(rows) == len(PROBLEMS)


def test_a_failed_problem_is_a_row_with_its_error(endpoint: Endpoint) -> None:
    endpoint.broken_questions = {"question 3"}
    rows = run(endpoint, PROBLEMS, Plan())
    assert [row.problem_id for row in rows.values() if row.error] == ["p/3"]
    assert rows["p/3"].error == "Refused: the generator failed (HTTP 500)"
    assert rows["p/2"].right


def test_a_full_endpoint_is_retried_with_the_same_seed(endpoint: Endpoint) -> None:
    endpoint.refusals = [(429, {"Retry-After": "0"}), (503, {"Retry-After": "0"})]
    rows = run(endpoint, PROBLEMS[:1], Plan())
    assert rows["p/0"].error is None
    assert len({body["seed"] for body in endpoint.requests}) == 1
    assert len(endpoint.requests) == 3


def test_a_problem_seed_fits_every_json_reader() -> None:
    seeds = {problem_seed(0, f"p/{index}") for index in range(1000)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_n_is_passed_only_to_strategies_with_a_width() -> None:
    assert search_field("greedy", 8) == {"strategy": "greedy"}
    assert search_field("beam_search", 8) == {"strategy": "beam_search", "n": 8}
    assert search_field("beam-64", 8) == {"strategy": "beam_search", "n": 64}


@pytest.mark.parametrize(("strategy", "n"), [("magic", 8), ("beam_search", 6), ("beam-0", 8)])
def test_settings_that_every_endpoint_refuses_are_refused_locally(strategy: str, n: int) -> None:
    with pytest.raises(SearchFieldError, match=strategy):
        search_field(strategy, n)
