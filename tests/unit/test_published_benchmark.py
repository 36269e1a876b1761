"""The computations behind `benchmarks.published`: rows that survive a crash, votes of a pool, paired intervals."""

import asyncio
import json
import math
import time
from pathlib import Path

import pytest
import torch

from benchmarks.published.answers_left import answers_left
from benchmarks.published.confidence import TOP_K, WINDOW, figures_of
from benchmarks.published.layers import SHOWN, compared
from benchmarks.published.problems import INSTRUCTION, chosen_problems
from benchmarks.published.report import MAJORITY, WEIGHTED, claims_of, lines_of, pass_rates
from benchmarks.published.rows import Row, RowFile
from benchmarks.published.sampling import NoScorer, in_parallel, pool_row
from benchmarks.published.scoring import score_pool
from benchmarks.published.searching import SEARCHES, search_field
from benchmarks.published.strategies import Outcome, PoolSolution, any_right, pool_of, voted
from benchmarks.published.training import exported_lines, held_out, split_of
from benchmarks.published.verifier import knowledge
from cluster.evaluation.card_fit import FREQUENT, NO_ANSWER, OTHER
from cluster.evaluation.paired_bootstrap import paired_bootstrap
from cluster.training.labels import split_problems
from cluster.training.run import claimed, train
from cluster.training.settings import TrainingPaths, TrainingSettings
from cluster.training.solutions import read_solved
from deployments.engines.settings import EMBEDDED_GENERATOR
from search.answers.equivalence import AnswerMatcher
from search.answers.voting import ANSWER_RULES, SelectionRule
from search.run.environment import SearchEnvironment
from search.settings import parse_search
from search.strategies.path_score import Aggregation
from tests.unit.search.search_fakes import PROMPT, FakeGenerator, FakeScorer


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    lines = [json.dumps({"question": f"What is {k}?", "answer": f"It is.\n#### {k},000"}) for k in range(1, 30)]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    return tmp_path


def solution(group: int | None, *rewards: float, correct: bool = False, tokens: int = 10) -> PoolSolution:
    return PoolSolution(tokens, correct, group, rewards)


RIGHT, WRONG = 0, 1
POOL = [
    solution(RIGHT, 0.9, correct=True),
    solution(WRONG, 0.3),
    solution(WRONG, 0.4),
    solution(None, 0.99),
    solution(RIGHT, 0.8, correct=True),
    solution(RIGHT, 0.1, correct=True),
    solution(WRONG, 0.95),
    solution(2, 0.2),
]
"""Two parts of four: the majority is wrong in the first and right in the second, the rewards the other way round."""


def test_problems_are_chosen_in_one_order_whatever_their_number(gsm8k: Path) -> None:
    chosen = chosen_problems(gsm8k, "test", 20)
    assert chosen_problems(gsm8k, "test", 5) == chosen[:5]
    assert len({problem.id for problem in chosen}) == 20
    first = chosen[0]
    assert first.answer == f"{first.number + 1}000"
    assert first.text == f"What is {first.number + 1}?{INSTRUCTION}"


def test_lines_that_are_no_problems_are_refused_with_their_number(gsm8k: Path) -> None:
    (gsm8k / "train.jsonl").write_text('{"question": "1 + 1?", "answer": "It is 2."}\n')
    with pytest.raises(ValueError, match="line 1 has no answer"):
        chosen_problems(gsm8k, "train", 1)
    with pytest.raises(ValueError, match="29 problems, not 30"):
        chosen_problems(gsm8k, "test", 30)


def test_rows_are_found_again_and_none_is_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows" / "pool.jsonl"
    RowFile(path, ("problem", "n")).append({"problem": "test-1", "n": 8, "text": "æ\n\n"})
    again = RowFile(path, ("problem", "n"))
    assert ("test-1", 8) in again
    assert ("test-1", 16) not in again
    assert again.rows["test-1", 8]["text"] == "æ\n\n"
    with pytest.raises(ValueError, match="already"):
        again.append({"problem": "test-1", "n": 8})


def test_a_row_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"problem":"test-1"}\n{"problem":"test-2","te')
    rows = RowFile(path, ("problem",))
    assert list(rows.rows) == [("test-1",)]
    rows.append({"problem": "test-2"})
    assert list(RowFile(path, ("problem",)).rows) == [("test-1",), ("test-2",)]


def test_a_broken_whole_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"problem" "test-1"}\n')
    with pytest.raises(ValueError, match="line 1: no JSON"):
        RowFile(path, ("problem",))


async def test_rows_are_kept_as_they_finish_until_the_time_is_up() -> None:
    kept: list[Row] = []
    first_done = asyncio.Event()

    async def work(number: int) -> Row:
        if number > 1:
            await asyncio.Event().wait()
        first_done.set()
        return {"number": number}

    await in_parallel([0, 1, 2, 3], work, kept.append, in_flight=2, ends_at=time.monotonic() + 0.2)
    assert first_done.is_set()
    assert kept == [{"number": 0}, {"number": 1}]


async def test_an_error_in_one_problem_ends_the_run() -> None:
    async def work(number: int) -> Row:
        raise ValueError("no such problem")

    with pytest.RaisesGroup(ValueError):
        await in_parallel([0], work, lambda row: None, in_flight=2, ends_at=time.monotonic() + 60)


def test_votes_are_means_over_the_parts_of_the_pool() -> None:
    assert voted(POOL, 4, SelectionRule.MAJORITY) == Outcome(0.5, 40)
    assert voted(POOL, 4, SelectionRule.WEIGHTED) == Outcome(0.5, 40)
    assert voted(POOL, 8, SelectionRule.MAJORITY) == Outcome(1.0, 80)
    with pytest.raises(ValueError, match="8 solutions, not 16"):
        voted(POOL, 16, SelectionRule.MAJORITY)


def test_each_rule_chooses_as_a_search_would() -> None:
    first, second = POOL[:4], POOL[4:]
    assert [voted(first, 4, rule).correct for rule in ANSWER_RULES] == [1.0, 1.0, 0.0]
    assert [voted(second, 4, rule).correct for rule in ANSWER_RULES] == [0.0, 0.0, 1.0]


def test_the_aggregation_decides_the_score() -> None:
    pool = [solution(RIGHT, 0.6, 0.6, correct=True), solution(WRONG, 0.1, 0.9)]
    assert voted(pool, 2, SelectionRule.NAIVE, Aggregation.LAST).correct == 0.0
    assert voted(pool, 2, SelectionRule.NAIVE, Aggregation.MIN).correct == 1.0


def test_pass_rates() -> None:
    none_right = [solution(WRONG, 0.5)] * 16
    assert any_right(POOL, 4) == 1.0
    assert any_right(POOL[1:4], 1) == 0.0
    assert pass_rates({"a": [*POOL, *POOL], "b": none_right}) == {"1": 0.1875, "8": 0.5, "16": 0.5}


async def test_equal_answers_are_one_group() -> None:
    matcher = AnswerMatcher()
    await matcher.start()
    try:
        written = [("1,000", True), (None, False), ("7", False), ("1000.00", True)]
        solutions = [{"answer": answer, "correct": correct, "tokens": [3, 4]} for answer, correct in written]
        pool = await pool_of(solutions, [[0.5], [0.1], [0.2], [0.3]], matcher)
    finally:
        matcher.close()
    assert [each.group for each in pool] == [0, None, 1, 0]
    assert [each.rewards for each in pool] == [(0.5,), (0.1,), (0.2,), (0.3,)]
    assert {each.tokens for each in pool} == {7}


def test_the_bootstrap_pairs_problems() -> None:
    """100 problems that differ alike have no spread, whatever the spread over problems."""
    first = {str(k): float(k % 2) / 2 for k in range(100)}
    second = {problem: value + 0.25 for problem, value in first.items()}
    found = paired_bootstrap(first, second | {"another": 1.0})
    assert found == (100, 0.25, 0.25, 0.25)


def test_the_bootstrap_interval_is_that_of_the_normal_approximation() -> None:
    """60 of 400 problems won and 40 lost: 0.05 with a standard error of 0.0249."""
    first = {str(k): float(k < 40) for k in range(400)}
    second = {str(k): float(40 <= k < 100) for k in range(400)}
    found = paired_bootstrap(first, second)
    assert found.mean == pytest.approx(0.05)
    assert (found.low, found.high) == pytest.approx((0.05 - 1.96 * 0.0249, 0.05 + 1.96 * 0.0249), abs=0.003)


def test_without_common_problems_there_is_no_difference() -> None:
    with pytest.raises(ValueError, match="no problem that both"):
        paired_bootstrap({"a": 1.0}, {"b": 1.0})


def search_row(problem: str, correct: bool) -> Row:
    return {"problem": problem, "strategy": "dvts", "n": 8, "correct": correct, "tokens": 70, "seconds": 2.0}


def test_a_search_is_compared_on_its_own_problems() -> None:
    pools = {str(k): POOL for k in range(10)} | {"wrong": [solution(WRONG, 0.5)] * 8}
    rows = [search_row(str(k), correct=True) for k in range(3)] + [search_row("wrong", correct=True)]
    lines = lines_of({"wrong": Outcome(0.0, 9)}, pools, {"0": POOL}, rows, Aggregation.LAST)
    by_name = {(line.strategy, line.n): line.as_json() for line in lines}
    assert set(by_name) == {("greedy", 1), (MAJORITY, 8), ("best-of-n", 8), (WEIGHTED, 8), ("dvts", 8)}
    assert by_name[MAJORITY, 8]["problems"] == 11
    dvts = by_name["dvts", 8]
    assert (dvts["problems"], dvts["accuracy"], dvts["majority"], dvts["difference"]) == (4, 1.0, 0.75, 0.25)
    assert (dvts["tokens"], dvts["majority_tokens"], dvts["seconds"]) == (70, 80, 2.0)
    few, best = claims_of(lines)
    assert (few["value"], few["holds"]) == (1, False)
    assert (best["value"], best["holds"]) == (0.0, False)
    assert [claim["holds"] for claim in claims_of([])] == [False, False]


def test_a_gain_on_all_problems_holds() -> None:
    pools = {str(k): [solution(RIGHT, 0.9, correct=True), *[solution(WRONG, 0.1)] * 7] for k in range(200)}
    claims = claims_of(lines_of({}, pools, pools, [], Aggregation.LAST))
    assert [(claim["value"], claim["holds"]) for claim in claims] == [(200, True), (100.0, True)]


def test_what_the_reward_model_knows() -> None:
    found = knowledge({"a": POOL, "b": [solution(WRONG, 0.0)] * 8}, Aggregation.LAST)
    assert (found["solutions"], found["problems_with_right_and_wrong"]) == (16, 1)
    assert found["auc"] == pytest.approx(30 / 39, abs=1e-4)
    assert found["auc_within_problems"] == pytest.approx(6 / 15, abs=1e-4)
    against = found["auc_within_problems_against"]
    assert against == {FREQUENT: pytest.approx(4 / 9, abs=1e-4), OTHER: pytest.approx(2 / 3, abs=1e-4), NO_ANSWER: 0.0}
    assert found["lost_by"] == {"naive": 1, "weighted": 0, "majority": 0}


def test_how_many_answers_a_search_leaves_beside_as_many_sampled_solutions() -> None:
    def ended(*answers: str | None) -> list[Row]:
        return [{"answer": answer, "correct": answer == "1"} for answer in answers]

    searches: list[Row] = [
        {"problem": "a", "strategy": "dvts", "n": 4, "paths": ended("1", "1", None)},
        {"problem": "b", "strategy": "dvts", "n": 4, "paths": ended("2", "3")},
        {"problem": "not sampled", "strategy": "dvts", "n": 4, "paths": ended("4")},
    ]
    sampled = {"a": ended("1", "2", "3", "4", "5"), "b": ended("2", None, "3", "4", "1")}
    assert answers_left(searches, sampled) == [
        {
            "strategy": "dvts",
            "n": 4,
            "problems": 2,
            "search": {"answers": 1.5, "any_right": 0.5},
            "sampled": {"answers": 3.5, "any_right": 0.5},
        }
    ]


@pytest.mark.parametrize("strategy", SEARCHES)
@pytest.mark.parametrize("n", [8, 16])
def test_every_search_is_one_that_banyan_has(strategy: str, n: int) -> None:
    assert parse_search(search_field(strategy, n)).strategy.name == SEARCHES[strategy]["strategy"]


async def test_a_pool_has_every_solution_even_of_equal_texts_and_is_scored_once(gsm8k: Path, tmp_path: Path) -> None:
    problem, later = chosen_problems(gsm8k, "test", 2)
    generator, scorer = FakeGenerator(variety=2), FakeScorer()
    matcher = AnswerMatcher()
    await matcher.start()
    try:
        environment = SearchEnvironment(generator, NoScorer(), 1024, matcher)
        row = await pool_row(problem, PROMPT, 8, environment)
    finally:
        matcher.close()
    assert len(row["solutions"]) == 8
    assert len({"".join(each["steps"]) for each in row["solutions"]}) <= 2
    assert sum(sum(each["tokens"]) for each in row["solutions"]) == generator.tokens
    pool, rewards = RowFile(tmp_path / "pool", ("problem", "n")), RowFile(tmp_path / "rewards", ("problem", "n"))
    pool.append(row)
    for _ in range(2):
        await score_pool(scorer, [problem, later], 8, pool, rewards, time.monotonic() + 60)
    assert len(scorer.requests) == 1
    scored = rewards.rows[problem.id, 8]["rewards"]
    assert [len(each) for each in scored] == [len(each["steps"]) for each in row["solutions"]]


async def test_what_is_exported_is_what_training_reads_and_holds_out(gsm8k: Path, tmp_path: Path) -> None:
    problems = chosen_problems(gsm8k, "test", 12)
    pool = RowFile(tmp_path / "pool", ("problem", "n"))
    for index, problem in enumerate(problems):
        written = {"steps": [f"{index} and\n\n", "so on"], "tokens": [2, 2], "answer": None, "end": "length"}
        solutions = [written | {"correct": correct} for correct in (True, False)]
        pool.append({"problem": problem.id, "n": 2, "solutions": solutions})
    path = tmp_path / "solutions.jsonl"
    path.write_text("\n".join(exported_lines(problems, 2, pool)))
    solved = await read_solved(path)
    assert {each.question for each in solved} == {problem.text for problem in problems}
    defaults = TrainingSettings(backbone="")
    split = split_problems(solved, defaults.held_out, defaults.seed)
    assert {each.text for each in held_out(problems, 2, pool)} == {each.question for each in split.card}
    assert len(held_out(problems, 2, pool)) == 2
    with pytest.raises(ValueError, match="has no 2 solutions yet"):
        held_out(chosen_problems(gsm8k, "test", 13), 2, pool)


async def test_all_layers_give_the_reward_model_that_train_prm_makes(gsm8k: Path, tmp_path: Path) -> None:
    problems = chosen_problems(gsm8k, "test", 20)
    pool = RowFile(tmp_path / "pool", ("problem", "n"))
    for index, problem in enumerate(problems):
        texts = [f"{index} + {number} = {index * number}\n\n" for number in range(4)]
        solutions = [{"steps": [text, texts[0]], "correct": len(text) % 2 == 0} for text in texts]
        pool.append({"problem": problem.id, "n": 4, "solutions": solutions})
    path = tmp_path / "solutions.jsonl"
    path.write_text("\n".join(exported_lines(problems, 4, pool)))
    settings = TrainingSettings(backbone=EMBEDDED_GENERATOR)
    with claimed(paths := TrainingPaths(tmp_path / "head"), {}):
        trained = (await train(await read_solved(path), settings, paths, lambda *_: None)).metrics
    first, last = await compared(split_of(problems, 4, pool), EMBEDDED_GENERATOR, [1, 4], threads=1)
    assert (first["depth"], last["depth"]) == (1, 4)
    for name in SHOWN:
        assert last[name] == pytest.approx(getattr(trained, name), abs=1e-3)
    assert first["weighted"] is not None


def test_confidence_is_that_of_the_papers() -> None:
    """Beside the formulas written out: DeepConf's windows one by one, self-certainty as a divergence."""
    torch.manual_seed(0)
    tokens, vocabulary = WINDOW + 9, 40
    logprobs = torch.log_softmax(3 * torch.randn(tokens, vocabulary), dim=1)
    written = torch.randint(vocabulary, (tokens,))
    drawn = logprobs[range(tokens), written]
    top = logprobs.sort(dim=1, descending=True).values[:, :TOP_K].mean(dim=1)
    found = figures_of(drawn, logprobs.mean(dim=1), top)
    uniform = torch.full((vocabulary,), 1 / vocabulary)
    divergence = [float((uniform * (uniform.log() - row)).sum()) for row in logprobs]
    windows = [-float(top[begin : begin + WINDOW].mean()) for begin in range(tokens - WINDOW + 1)]
    assert found["logprob"] == pytest.approx(float(drawn.mean()), abs=1e-4)
    assert found["self_certainty"] - math.log(vocabulary) == pytest.approx(sum(divergence) / tokens, abs=1e-3)
    assert found["confidence"] == pytest.approx(-float(top.mean()), abs=1e-4)
    assert (found["lowest_window"], found["tail"]) == pytest.approx((min(windows), windows[-1]), abs=1e-4)
    assert figures_of(drawn[:3], logprobs[:3].mean(dim=1), top[:3])["lowest_window"] == pytest.approx(
        -float(top[:3].mean()), abs=1e-4
    )
