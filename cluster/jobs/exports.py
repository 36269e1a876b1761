"""Exports the trees of a job as training data, in the formats of training frameworks."""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from cluster.evaluation.problem_files import EvalProblem
from cluster.evaluation.training_file import TrainingLine, training_line
from cluster.jobs.formats import ExportFormat
from cluster.jobs.outputs import read_lines
from cluster.jobs.tables import drafted, write_rows
from search.answers.equivalence import AnswerMatcher
from search.snapshot import NodeView, TreeView
from search.training_data import ended_paths

VERL = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct(
            {
                "index": pa.int64(),
                "split": pa.string(),
                "unique_id": pa.string(),
                "level": pa.string(),
                "accuracy": pa.float64(),
            }
        ),
    }
)
DATA_SOURCE = "banyan"

Json = dict[str, Any]


class Searched(NamedTuple):
    """One problem with its graded tree."""

    line: int
    """Line number in the input."""
    prompt_token_ids: list[int]
    tree: TreeView
    training: TrainingLine

    def is_right(self) -> Callable[[NodeView], bool]:
        """Returns a test of whether a right solution lies at or below a step: then the step's value is positive."""
        right = {node.id for node in self.training.nodes if node.value is not None and node.value > 0}
        return lambda node: node.id in right


async def export(output: Path, path: Path, kind: ExportFormat) -> int:
    """Writes training examples from the trees in ``output``, atomically. Returns their number.

    Raises:
        OSError: it cannot be written.
        ValueError: a problem was graded by a test.
    """
    matcher = AnswerMatcher()
    rows = _examples(output, _EXAMPLES[kind], matcher)
    try:
        if kind is ExportFormat.VERL:
            return await write_rows(path, VERL, rows)
        return await _write_lines(path, rows)
    finally:
        matcher.close()


async def _examples(
    output: Path, of: Callable[[Searched], Iterator[Json]], matcher: AnswerMatcher
) -> AsyncIterator[Json]:
    for line in read_lines(output):
        if not line["expected"]:
            raise ValueError(f"line {line['line']}: training data is made of problems with an answer, not of tests")
        problem = EvalProblem(line["problem_id"], line["problem"], line["expected"], line["level"])
        tree = TreeView.model_validate(line["tree"])
        training = await training_line(problem, line["strategy"], line["seed"], tree, matcher)
        for example in of(Searched(line["line"], line["prompt_token_ids"], tree, training)):
            yield example


async def _write_lines(path: Path, rows: AsyncIterator[Json]) -> int:
    count = 0
    with drafted(path) as draft, draft.open("w", encoding="utf-8") as file:
        async for row in rows:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            count += 1
    return count


def _banyan(searched: Searched) -> Iterator[Json]:
    yield searched.training.model_dump(mode="json")


def _trl(searched: Searched) -> Iterator[Json]:
    """One example for each path. A step is labelled right if a right solution lies at or below it (Math-Shepherd's hard
    label, arXiv 2312.08935). Whitespace around a step is removed, as by the reward family ``token_class``: TRL adds its
    own separator."""
    is_right = searched.is_right()
    for path in ended_paths(searched.tree.nodes):
        yield {
            "prompt": searched.training.problem,
            "completions": [(node.text or "").strip() for node in path],
            "labels": [is_right(node) for node in path],
        }


def _verl(searched: Searched) -> Iterator[Json]:
    training = searched.training
    yield {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": training.problem}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": training.answer},
        "extra_info": {
            "index": searched.line,
            "split": "train",
            "unique_id": training.unique_id,
            "level": None if training.level is None else str(training.level),
            "accuracy": training.accuracy,
        },
    }


def _gym(searched: Searched) -> Iterator[Json]:
    """One rollout for each path, with one message for each step, whose prompt is all token ids before it, those that
    the step hook added included. What a step has up to the last tokens that the model was given, such as a thought that
    was closed for it, is part of its prompt. Paths with a missing or infinite log-probability are left out."""
    training, is_right = searched.training, searched.is_right()
    for path in ended_paths(searched.tree.nodes):
        prompt, output = list(searched.prompt_token_ids), []
        for node in path:
            ids, logprobs = node.token_ids, node.token_logprobs
            if ids is None or logprobs is None or not all(map(math.isfinite, logprobs)):
                break
            node_id, given = ".".join(map(str, node.id)), max((end for _, end in node.given), default=0)
            output.append(
                {
                    "id": f"msg_{training.unique_id}_{node_id}",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": node.text, "annotations": []}],
                    "prompt_token_ids": [*prompt, *ids[:given]],
                    "generation_token_ids": ids[given:],
                    "generation_log_probs": logprobs[given:],
                }
            )
            prompt += [*ids, *(node.hook.token_ids if node.hook else ())]
        else:
            yield {
                "responses_create_params": {"input": [{"role": "user", "content": training.problem}]},
                "response": {"output": output},
                "reward": 1.0 if is_right(path[-1]) else 0.0,
                "expected_answer": training.answer,
            }


_EXAMPLES: Mapping[ExportFormat, Callable[[Searched], Iterator[Json]]] = {
    ExportFormat.BANYAN: _banyan,
    ExportFormat.TRL: _trl,
    ExportFormat.VERL: _verl,
    ExportFormat.GYM: _gym,
}
