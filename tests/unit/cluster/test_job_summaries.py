"""The summary of a job's output, and the training data that is made of its trees."""

import asyncio
import json
import math
from fractions import Fraction
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from endpoint_stand_in import Endpoint, tree_of
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputMessage
from pyarrow import parquet
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.cli.progress import Pace, line_progress
from cluster.evaluation.training_file import TrainingLine
from cluster.jobs.outputs import read_lines
from cluster.jobs.samples import Sample, pass_at, path_answers, powers_of_two, shuffled, vote
from cluster.jobs.summary import Latencies, Summary, summary_lines
from search.answers.equivalence import AnswerMatcher
from search.answers.voting import Ballot, Candidate, SelectionRule
from search.settings import parse_search
from search.snapshot import TreeView
from search.tree import Node, NodeStatus

SCORES = st.sampled_from([None, 0.0, 0.25, 0.5, 1.0])
GROUPS = st.sampled_from([None, 0, 1, 2])
RIGHT_GROUP = 1
ADDED = [70, 71, 72]
"""Tokens that the step hook added to the first step of a problem."""
SAMPLES = st.lists(
    st.builds(
        lambda group, score, votes: Sample(group, group == RIGHT_GROUP, score, votes),
        GROUPS,
        SCORES,
        st.sampled_from([0.25, 0.5, 1.0]),
    ),
    min_size=1,
    max_size=12,
)


class TestVotes:
    @settings(max_examples=200, deadline=None)
    @given(samples=SAMPLES, rule=st.sampled_from(SelectionRule))
    def test_equal_those_of_a_search(self, samples: list[Sample], rule: SelectionRule) -> None:
        node = Node((0,), None, 1, NodeStatus.TERMINAL)
        ballot = Ballot()
        for each in samples:
            answer = None if each.group is None else str(each.group)
            ballot.add(Candidate(node, each.score, answer, each.group, Fraction(each.votes)))
        assert vote(samples, rule) == (ballot.selected(rule).answer == str(RIGHT_GROUP))

    @settings(max_examples=100, deadline=None)
    @given(samples=SAMPLES, data=st.data())
    def test_pass_at_k_is_the_share_of_all_draws_of_k_with_a_right_one(
        self, samples: list[Sample], data: st.DataObject
    ) -> None:
        k = data.draw(st.integers(1, len(samples)))
        draws = list(combinations(samples, k))
        assert pass_at(k, samples) == pytest.approx(
            sum(any(each.right for each in draw) for draw in draws) / len(draws)
        )
        if k < len(samples):
            assert pass_at(k, samples) <= pass_at(k + 1, samples) + 1e-12
        assert pass_at(0, []) == 0.0

    @given(most=st.integers(0, 5_000))
    def test_are_computed_at_powers_of_two_and_at_all_samples(self, most: int) -> None:
        found = list(powers_of_two(most))
        assert found[-1:] == [most] * (most > 0)
        assert all(k == 2**power for power, k in enumerate(found[:-1]))

    def test_a_path_counts_as_often_as_it_was_written(self) -> None:
        path = {"group": 0, "right": True, "score": 0.5, "votes": 1.0, "samples": 3}
        other = {"group": 1, "right": False, "score": 0.9, "votes": 1.0, "samples": 1}
        samples = shuffled([path, other], 7)
        assert sorted(sample.right for sample in samples) == [False, True, True, True]
        assert samples == shuffled([path, other], 7)
        assert vote(samples, SelectionRule.MAJORITY)
        assert not vote(samples, SelectionRule.NAIVE)

    def test_on_trees_grade_answers_by_value(self) -> None:
        async def graded() -> list[tuple[str | None, int | None, bool]]:
            matcher = AnswerMatcher()
            try:
                tree = TreeView.model_validate(tree_of("1/2", "3", None, "0.5"))
                found = await path_answers(tree, parse_search({"strategy": "best_of_n", "n": 4}), 0, "0.50", matcher)
                return [(path.answer, path.group, path.right) for path in found]
            finally:
                matcher.close()

        assert asyncio.run(graded()) == [("1/2", 0, True), ("3", 1, False), (None, None, False), ("0.5", 0, True)]


class TestSummary:
    @given(seconds=st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=200), percent=st.sampled_from([1, 50, 90, 99]))
    def test_latency_quantiles_are_within_one_percent(self, seconds: list[float], percent: int) -> None:
        latencies = Latencies()
        for each in seconds:
            latencies.add(each)
        exact = sorted(seconds)[math.ceil(percent / 100 * len(seconds)) - 1]
        assert latencies.percentile(percent) == pytest.approx(exact, rel=0.01)

    def test_the_number_of_levels_is_bounded(self) -> None:
        summary = Summary(1_000)
        for level in range(1_000):
            summary.add_error({"kind": "failed", "problem_id": "x", "level": str(level)})
        assert len(summary.levels) == 101
        assert sum(share.of for share in summary.levels.values()) == 1_000

    def test_a_batch_of_requests_has_the_mean_bill_of_its_searches(self) -> None:
        summary = Summary(3)
        block = {"strategy": "beam_search", "seed": 7, "written_tokens": 1000, "read_tokens": 200, "seconds": 1.0}
        block |= {"sample_tokens": 60.0, "prompt_tokens": 80, "sample_seconds": 0.25}
        usage = {"prompt_tokens": 80, "completion_tokens": 900}
        for change in ({}, {"written_tokens": 3000, "seconds": 2.0}, {"cached": True}):
            summary.add({"seconds": 2.0, "response": {"body": {"usage": usage, "search": block | change}}})
        told = [*summary_lines(summary, 5.0)]
        assert told[-1] == (
            "mean of a search: 2,000 tokens written and 200 read in 1.5 s; one sample: 60 and 80 in 0.2 s"
        ), "the answer from the cache cost nothing"
        cost = summary.as_json(5.0, {})["cost"]
        assert (cost["written_tokens"], cost["sample_tokens"]) == (2000, 60)
        assert "seed" not in cost

    def test_progress_shows_the_pace_and_the_remaining_time(self) -> None:
        now = 0.0
        pace = Pace(100, 40, lambda: now)
        assert str(pace) == "40 of 100 lines, 0.0 a second"
        now, pace.done = 10.0, 60
        assert str(pace) == "60 of 100 lines, 2.0 a second, 0:00:20 left"


async def test_without_a_terminal_progress_is_printed_line_by_line() -> None:
    console = Console(file=StringIO())
    async with line_progress(console, Pace(10, 4), lambda: ", 3 in flight", every_s=0.001) as done:
        done()
        async with asyncio.timeout(10):
            while "5 of 10 lines" not in console.file.getvalue():  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)
    assert ", 3 in flight\n" in console.file.getvalue()  # type: ignore[attr-defined]


class StepwiseSupervision(BaseModel):
    """TRL's dataset type of that name: docs/source/dataset_formats.md, "Stepwise supervision"."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str
    completions: list[str]
    labels: list[bool]


class MessageForTraining(ResponseOutputMessage):
    """NeMo Gym's ``NeMoGymResponseOutputMessageForTraining``: OpenAI's message with what a trainer needs."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]


class TestExports:
    def export(self, endpoint: Endpoint, tmp_path: Path, kind: str) -> Path:
        given, out, exported = (tmp_path / name for name in ("in.jsonl", "out.jsonl", f"{kind}.out"))
        lines = [{"problem": f"q{index}", "answer": "2", "level": index} for index in range(3)]
        given.write_text("".join(json.dumps(line) + "\n" for line in lines))
        endpoint.trees = {"q1": with_tokens(tree_of("3", "2", None)), "q2": with_tokens(tree_of("3"))}
        endpoint.trees["q2"]["nodes"][0]["hook"] = {"text": "as you say\n\n", "token_ids": ADDED}
        endpoint.trees["q2"]["nodes"][0]["given"] = [[1, 2]]
        arguments = ["--export", exported, "--export-format", kind, "--url", endpoint.url]
        ended = CliRunner().invoke(
            app, ["batch", str(given), str(out), *map(str, arguments)], env={"BANYAN_API_KEY": ""}
        )
        assert ended.exit_code == 0, ended.output
        return exported

    def test_trl(self, endpoint: Endpoint, tmp_path: Path) -> None:
        found = [
            StepwiseSupervision.model_validate(line) for line in read_lines(self.export(endpoint, tmp_path, "trl"))
        ]
        assert all(len(each.completions) == len(each.labels) for each in found)
        labels = {(each.prompt, each.completions[-1]): each.labels for each in found}
        assert labels == {
            ("q0", "\\boxed{2}"): [True, True],
            ("q1", "\\boxed{3}"): [True, False],
            ("q1", "\\boxed{2}"): [True, True],
            ("q1", "I do not know"): [True, False],
            ("q2", "\\boxed{3}"): [False, False],
        }
        assert {each.completions[0] for each in found} == {"1 + 1 = 2"}

    def test_verl(self, endpoint: Endpoint, tmp_path: Path) -> None:
        rows = {
            row["prompt"][0]["content"]: row
            for row in parquet.read_table(self.export(endpoint, tmp_path, "verl")).to_pylist()
        }
        assert rows.keys() == {"q0", "q1", "q2"}
        row = rows["q1"]
        assert row["prompt"] == [{"role": "user", "content": "q1"}]
        assert row["reward_model"] == {"style": "rule", "ground_truth": "2"}
        assert (row["data_source"], row["ability"]) == ("banyan", "math")
        assert row["extra_info"]["accuracy"] == pytest.approx(1 / 3)
        assert row["extra_info"]["index"] == 2

    def test_gym(self, endpoint: Endpoint, tmp_path: Path) -> None:
        rollouts = list(read_lines(self.export(endpoint, tmp_path, "gym")))
        assert [rollout["reward"] for rollout in rollouts if question_of(rollout) == "q1"] == [0.0, 1.0, 0.0]
        assert {question_of(rollout) for rollout in rollouts} == {"q1", "q2"}  # q0 has no known tokens
        for rollout in rollouts:
            messages = [MessageForTraining.model_validate(each) for each in rollout["response"]["output"]]
            path, written, with_hook = [1, 2, 3], 0, question_of(rollout) == "q2"
            for number, message in enumerate(messages):
                assert message.prompt_token_ids[: len(path)] == path
                given = len(message.prompt_token_ids) - len(path)
                assert given == (2 if with_hook and not number else 0), "what the model was given is in the prompt"
                assert len(message.generation_token_ids) == len(message.generation_log_probs)
                written += given + len(message.generation_token_ids)
                path = [*message.prompt_token_ids, *message.generation_token_ids, *(ADDED if with_hook else [])]
            assert written == 10

    def test_banyan(self, endpoint: Endpoint, tmp_path: Path) -> None:
        found = [TrainingLine.model_validate(line) for line in read_lines(self.export(endpoint, tmp_path, "banyan"))]
        assert {each.problem: each.accuracy for each in found} == {"q0": 1.0, "q1": pytest.approx(1 / 3), "q2": 0.0}
        assert "as you say" not in "".join(node.text or "" for each in found for node in each.nodes)
        hooks = [node.hook for each in found for node in each.nodes if node.hook]
        assert [hook.text for hook in hooks] == ["as you say\n\n"]


def question_of(rollout: dict[str, Any]) -> str:
    return str(rollout["responses_create_params"]["input"][0]["content"])


def with_tokens(tree: dict[str, Any]) -> dict[str, Any]:
    """A tree with the ids of its tokens and their log-probabilities."""
    for node in tree["nodes"]:
        node["token_ids"] = list(range(node["tokens"]))
        node["token_logprobs"] = [node["logprob"] / node["tokens"]] * node["tokens"]
    return tree
