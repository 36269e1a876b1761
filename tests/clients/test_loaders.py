"""Training data exported by `banyan batch`, read by the published loaders of TRL and verl, each in an environment of
its own. The result is compared with the trees, which are graded here independently."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.commands import HERE, ROOT, banyan, program_of, run

PROBLEMS = 20
TOKENIZER = ROOT / "deployments" / "embedded" / "generator"
BOXED = re.compile(r"\\boxed\{(-?\d+)\}")

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(1200)


class TreePath(NamedTuple):
    """A path through a tree to an end."""

    problem: str
    steps: tuple[str, ...]
    labels: tuple[bool, ...]
    """For each step, whether a right solution lies at or below it."""


class Tree(NamedTuple):
    """A line of the job's results."""

    line: Json

    @property
    def ends(self) -> dict[tuple[int, ...], Json]:
        nodes = self.line["tree"]["nodes"]
        return {tuple(each["id"]): each for each in nodes if each["status"] == "terminal" and min(each["id"]) >= 0}

    def steps(self, end: tuple[int, ...]) -> list[Json]:
        known = {tuple(node["id"]): node for node in self.line["tree"]["nodes"]}
        return [known[end[:depth]] for depth in range(1, len(end) + 1)]

    def is_right(self, end: tuple[int, ...]) -> bool:
        said = BOXED.findall("".join(step["text"] for step in self.steps(end)))
        return bool(said) and said[-1] == self.line["expected"]

    def paths(self) -> Iterator[TreePath]:
        right = [end for end in self.ends if self.is_right(end)]
        for end in self.ends:
            labels = (any(one[:depth] == end[:depth] for one in right) for depth in range(1, len(end) + 1))
            texts = (step["text"].rstrip("\n") for step in self.steps(end))
            yield TreePath(self.line["problem"], tuple(texts), tuple(labels))

    @property
    def accuracy(self) -> float:
        written = {end: node["count"] for end, node in self.ends.items()}
        return sum(count for end, count in written.items() if self.is_right(end)) / sum(written.values())


class Job(NamedTuple):
    """A job's results, and the paths of its exports."""

    trees: list[Tree]
    exports: dict[str, Path]


@pytest.fixture(scope="module")
def job(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    directory = tmp_path_factory.mktemp("job")
    banyan(directory, "problems", "--n", str(PROBLEMS), "--seed", "29", "--output", "problems.jsonl")
    exports = {"trl": directory / "trl.jsonl", "verl": directory / "verl.parquet"}
    for kind, file in exports.items():
        # The second run only exports, since all lines are done.
        search = ["--strategy", "dvts", "--n", "16", "--seed", "3", "--trees", "--url", endpoint]
        banyan(
            directory,
            "batch",
            "problems.jsonl",
            "results.jsonl",
            *search,
            "--export",
            str(file),
            "--export-format",
            kind,
        )
    trees = [Tree(json.loads(line)) for line in (directory / "results.jsonl").read_text().splitlines()]
    assert len(trees) == PROBLEMS
    return Job(trees, exports)


def read_by(loader: str, export: Path, directory: Path) -> Any:
    """What a loader reports about an export."""
    told = directory / "told.json"
    program = HERE / "programs" / f"{loader}_loader.py"
    run([str(program_of(loader, "python")), str(program), str(export), str(TOKENIZER), str(told)], directory)
    return json.loads(told.read_text())


def test_trl_reads_every_path_of_the_trees_and_trains_on_them(job: Job, tmp_path: Path) -> None:
    told = read_by("trl", job.exports["trl"], tmp_path)
    assert told["columns"] == ["prompt", "completions", "labels"]
    assert told["trained"] == 2
    assert math.isfinite(told["loss"])
    problems = [tree.line["problem"] for tree in job.trees]
    read = Counter(path_of(row, problems) for row in told["read"])
    grown = Counter(path for tree in job.trees for path in tree.paths())
    assert read == grown
    labels = Counter(label for path in read.elements() for label in path.labels)
    assert labels[True] > 100
    assert labels[False] > 30
    print(f"TRL: {read.total()} paths of {PROBLEMS} trees, steps {dict(labels)}, loss {told['loss']:.3f}")


def test_verl_reads_a_prompt_for_every_tree(job: Job, tmp_path: Path) -> None:
    told = read_by("verl", job.exports["verl"], tmp_path)
    rows = {row["index"]: row for row in told}
    assert sorted(rows) == list(range(1, PROBLEMS + 1))
    for tree in job.trees:
        line = tree.line
        row = rows[line["line"]]
        assert row["raw_prompt"] == row["prompt"] == [{"role": "user", "content": line["problem"]}]
        assert (row["data_source"], row["ability"]) == ("banyan", "math")
        assert row["reward_model"] == {"style": "rule", "ground_truth": line["expected"]}
        info = row["extra_info"]
        assert (info["unique_id"], info["level"], info["split"]) == (line["problem_id"], str(line["level"]), "train")
        assert info["accuracy"] == pytest.approx(tree.accuracy)
    print(f"verl: {len(told)} prompts, accuracies {sorted({round(row['extra_info']['accuracy'], 2) for row in told})}")


def path_of(row: list[tuple[str, int]], problems: list[str]) -> TreePath:
    """A path from its tokens: everything up to the end of each labelled step, and its label."""
    [problem] = [each for each in problems if row[0][0].startswith(each)]
    ends = [problem, *(text for text, _ in row)]
    steps = [text.removeprefix(before) for before, text in pairwise(ends)]
    assert all(step.endswith("\n") for step in steps), "TRL's separator"
    return TreePath(problem, tuple(step.removesuffix("\n") for step in steps), tuple(bool(label) for _, label in row))
