"""Training data exported by `banyan batch`, read by the published loaders of TRL and verl, each in an environment of
its own. The result is compared with the trees, which are graded here independently."""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from cluster.evaluation.prm_metrics import step_auc
from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.token_class import TokenClass, TokenClassSettings
from search.ports import ScoreItem, ScoreRequest
from tests.clients.commands import HERE, ROOT, banyan, program_of, run
from tests.engine.conftest import quiet, stop

with quiet():
    from deployments.engines.scoring import ScoringEngine

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
            texts = (step["text"].strip() for step in self.steps(end))
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


class Circle(NamedTuple):
    """What TRL read of an export, and what it made of a tiny model with it."""

    columns: list[str]
    rows: list[tuple[list[int], list[int]]]
    """Token ids of each path, and the positions of its labels."""
    labels: list[list[int]]
    loss: float
    models: dict[str, str]
    """Directories of the model before and after training."""


@pytest.fixture(scope="module")
def trl(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Circle:
    directory = tmp_path_factory.mktemp("trl")
    told = read_by("trl", job.exports["trl"], directory)
    models = {name: str(directory / f"told.json.{name}") for name in ("untrained", "trained")}
    return Circle(told["columns"], told["read"], told["labels"], told["loss"], models)


def test_trl_reads_every_path_of_the_trees_and_trains_on_them(job: Job, trl: Circle) -> None:
    assert trl.columns == ["prompt", "completions", "labels"]
    assert math.isfinite(trl.loss)
    problems = [tree.line["problem"] for tree in job.trees]
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    texts = [[tokenizer.decode(ids[: end + 1]) for end in ends] for ids, ends in trl.rows]
    read = Counter(path_of(row, labels, problems) for row, labels in zip(texts, trl.labels, strict=True))
    grown = Counter(path for tree in job.trees for path in tree.paths())
    assert read == grown
    labels = Counter(label for path in read.elements() for label in path.labels)
    assert labels[True] > 100
    assert labels[False] > 30
    print(f"TRL: {read.total()} paths of {PROBLEMS} trees, steps {dict(labels)}, loss {trl.loss:.3f}")


def test_the_model_that_trl_trains_on_an_export_is_read_as_it_was_trained(job: Job, trl: Circle) -> None:
    """From the trees to a reward model, by TRL alone, which Banyan serves as ``token_class``."""
    paths = [json.loads(line) for line in job.exports["trl"].read_text().splitlines()]
    assert [[int(label) for label in path["labels"]] for path in paths] == trl.labels
    areas: dict[str, float] = {}
    for name, directory in trl.models.items():
        scored = asyncio.run(token_class_rewards(directory, paths, trl.rows))
        model = AutoModelForTokenClassification.from_pretrained(directory).eval()
        for rewards, (ids, ends) in zip(scored, trl.rows, strict=True):
            with torch.inference_mode():
                shares = model(input_ids=torch.tensor([ids])).logits[0, ends].double().softmax(dim=-1)[:, 1]
            assert rewards == pytest.approx(shares.tolist(), abs=1e-4)
        pairs = [pair for each in zip(scored, trl.labels, strict=True) for pair in zip(*each, strict=True)]
        areas[name] = step_auc([reward for reward, _ in pairs], [bool(label) for _, label in pairs]) or 0.0
    assert areas["trained"] > max(0.75, areas["untrained"] + 0.1)
    print(f"TRL: area under the curve of the steps {areas}")


async def token_class_rewards(model: str, paths: list[Json], rows: list[tuple[list[int], list[int]]]) -> list[Any]:
    """The rewards of every path's steps. Its tokens must be TRL's."""
    settings = parse_prm({"family": "token_class", "model": model, "engine_args": {"enforce_eager": True}})
    assert isinstance(settings, TokenClassSettings)
    reader = TokenClass(settings, AutoTokenizer.from_pretrained(model))
    engine = ScoringEngine(settings)
    with quiet():
        await engine.start()
    try:
        scored: list[Any] = []
        for path, (ids, ends) in zip(paths, rows, strict=True):
            # Steps as a search has them, with the delimiter that the export left out.
            steps = tuple(f"{step}\n\n" for step in path["completions"])
            [query] = reader.queries(path["prompt"], steps, len(steps))
            assert (query.token_ids, list(query.tags)) == (ids, ends)
            scored += await engine.score(ScoreRequest("search", path["prompt"], (ScoreItem(steps, len(steps)),), 600.0))
        return scored
    finally:
        await stop(engine)


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


def path_of(read: list[str], labels: list[int], problems: list[str]) -> TreePath:
    """A path from the texts up to each of its labels."""
    [problem] = [each for each in problems if read[0].startswith(each)]
    steps = [text.removeprefix(before) for before, text in pairwise([problem, *read])]
    assert all(step.endswith("\n") for step in steps), "TRL's separator"
    return TreePath(problem, tuple(step.removesuffix("\n") for step in steps), tuple(map(bool, labels)))
