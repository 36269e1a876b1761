"""``banyan tree`` reads every form in which a search is saved, and says what is wrong with others."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.cli.main import app
from search import (
    AnswerMatcher,
    Child,
    ChildGroup,
    SearchEnvironment,
    SearchOutcome,
    Step,
    StepEnd,
    StepHook,
    parse_search,
    run_search,
    save_tree,
    tree_as_json,
)
from search.snapshot import TreeView

Json = dict[str, Any]
ADDED = 7
"""The token that the step hook adds."""


class Coin:
    """Writes one of two texts below every node, so that siblings repeat; rates one of them higher."""

    async def expand(self, request: Any) -> AsyncIterator[ChildGroup]:
        for item in request.expansions:
            for branch in item.branches:
                side = branch.seed % 2
                if len(item.prefix) - item.prefix.count(ADDED) < 5:
                    step = Step((side,), f"side {side}\n\n", StepEnd.DELIMITER)
                else:
                    step = Step((side,), rf"\boxed{{{side}}}", StepEnd.END_OF_SEQUENCE)
                yield ChildGroup((Child(item.parent, branch.index, (step,), cached_tokens=0),))

    async def score(self, request: Any) -> list[list[float]]:
        return [[0.9 if "1" in item.steps[-1] else 0.1] for item in request.items]


async def note(question: str, path: Sequence[str], step: str) -> str | None:
    return "noted\n" if "1" in step else None


@pytest.fixture(scope="module", params=[None, StepHook(note, lambda text: [ADDED])], ids=["plain", "hooked"])
def outcome(request: pytest.FixtureRequest) -> SearchOutcome:
    coin, matcher = Coin(), AnswerMatcher()
    environment = SearchEnvironment(coin, coin, context_tokens=100, matcher=matcher, step_hook=request.param)
    settings = parse_search({"strategy": "beam_search", "n": 8, "m": 4, "seed": 1})
    found = asyncio.run(run_search("Heads or tails?", [1, 2, 3], settings, environment, search_id="coin"))
    matcher.close()
    return found


def shown(file: Path, *options: str) -> Json:
    """What the page that ``banyan tree`` writes shows."""
    result = CliRunner().invoke(app, ["tree", str(file), *options])
    assert result.exit_code == 0, result.output
    page = file.with_suffix(".html").read_text()
    found = re.search(r'<script id="saved" type="application/json">(.*)</script>', page)
    assert found
    [search] = json.loads(found[1])["searches"]
    return search  # type: ignore[no-any-return]


def assert_is(search: Json, outcome: SearchOutcome) -> None:
    """Checks that the events are those of the tree."""
    steps = [event for event in search["events"] if event["type"] == "step_scored"]
    nodes = {node.id: node for node in outcome.tree.nodes}
    assert {tuple(event["node"]) for event in steps} == nodes.keys()
    for event in steps:
        node = nodes[tuple(event["node"])]
        assert node.written_step is not None
        assert (event["text"], event["reward"], event["terminal"]) == (node.written_step.text, node.reward, node.ends)
        assert event.get("hook", {}).get("text", "") == (node.hook.text if node.hook else "")
        assert event["repeats"] == (list(node.repeats.id) if node.repeats else None)
    pruned = {tuple(each) for event in search["events"] if event["type"] == "steps_pruned" for each in event["pruned"]}
    assert pruned == {node.id for node in nodes.values() if node.status == "pruned"}
    assert pruned
    assert any(node.repeats for node in nodes.values())


def test_a_saved_tree(outcome: SearchOutcome, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    file.write_text(json.dumps(save_tree(outcome.tree)))
    search = shown(file)
    assert_is(search, outcome)
    assert search["seed"] == 1


def test_a_reply_with_its_tree(outcome: SearchOutcome, tmp_path: Path) -> None:
    file = tmp_path / "reply.json"
    block = {"strategy": "beam_search", "n": 8, "seed": 1, "node": list(outcome.selection.node.id)}
    reply = {"choices": [{"message": {"content": outcome.text}}], "search": block, "tree": tree_as_json(outcome.tree)}
    file.write_text(json.dumps(reply, indent=2))
    search = shown(file)
    assert_is(search, outcome)
    assert (search["search"], search["answer"], search["width"]) == (block, outcome.text, "n 8")


def test_a_line_of_results(outcome: SearchOutcome, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    tree = TreeView.model_validate(tree_as_json(outcome.tree)).model_dump(mode="json")
    row = {"problem": "Heads?", "strategy": "beam_search", "answer": "1", "text": outcome.text, "tree": tree}
    lines = [{"line": 3, "tree": {}}, {"line": 7, **row}]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    search = shown(file, "--line", "7")
    assert_is(search, outcome)
    assert search["question"] == "Heads?"
    end = next(each for each in search["events"] if each.get("node") == search["search"]["node"])
    assert end["terminal"]
    assert r"\boxed{1}" in end["text"]


@pytest.mark.parametrize("chat", [True, False])
def test_the_events_of_a_stream(chat: bool, tmp_path: Path) -> None:
    file = tmp_path / "events.txt"
    event = {"type": "step_scored", "node": [0], "text": "</script>"}
    shared = {"object": "chat.completion.chunk"} if chat else {}
    block = {"strategy": "greedy", "n": 1, "seed": 5}
    chunks: list[Json] = [{"search_event": event, "choices": [{"index": 0, "delta": {}}], **shared}]
    if chat:
        chunks.append({**shared, "choices": [{"index": 0, "delta": {"content": "42"}}], "search": block})
    else:
        reply = {"choices": [{"message": {"content": "42"}}], "search": block}
        chunks.append({"search": {"question": "6*7?", "reply": reply}})
    file.write_text("".join(f"id: 1\ndata: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n")
    search = shown(file)
    assert (search["events"], search["search"], search["answer"]) == ([event], block, "42")
    assert search.get("question") == (None if chat else "6*7?")


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("[]", (), "not a JSON object"),
        ("{", (), "no tree that can be shown"),
        ('{"id": "x", "reply": null}', (), "save its events"),
        ('{"searches": [1]}', (), "objects with events"),
        ('{"tree": {"version": 9}}', (), "no tree"),
        ('{"line": 1}\n{"line": 2}\n', (), "choose one with --line"),
        ('{"line": 1}\n', ("--line", "5"), "no result of line 5"),
        ("data: {}\n\n", (), "no search_event"),
        ('data: {"search_event": 1, "object": "chat.completion.chunk"}\n', (), "not in Banyan's format"),
    ],
)
def test_what_is_no_search_is_refused(content: str, options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    result = CliRunner().invoke(app, ["tree", str(file), *options])
    assert result.exit_code == 2
    assert said in result.output
    assert not file.with_suffix(".html").exists()


def test_the_file_itself_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "x.html"
    file.write_text("{}")
    assert CliRunner().invoke(app, ["tree", str(file)]).exit_code == 2
    assert file.read_text() == "{}"


def test_contexts_come_after_what_they_read_and_before_what_they_write(tmp_path: Path) -> None:
    def node(node_id: list[int], text: str) -> Json:
        usual = {"reward": None, "status": "terminal", "tokens": 2, "end": "end_of_sequence", "logprob": None}
        return {"id": node_id, "text": text, **usual}

    first, read, second = [1, 100_000], [0, 100_000], [1, 100_000, 0, 100_000]
    contexts = [
        {"id": node_id, "sources": sources, "template": "fuse", "prompt_tokens": 9, "digest": "0"}
        for node_id, sources in ((read, [[0], [1]]), (first, [[1], [0]]), (second, [[*first, 0], [*read, 0]]))
    ]
    nodes = [node([0], "a"), node([*read, 0], "c"), node([1], "b"), node([*first, 0], "d"), node([*second, 0], "e")]
    tree = {"version": 3, "nodes": nodes, "contexts": contexts}
    file = tmp_path / "reply.json"
    file.write_text(json.dumps({"text": "e", "tree": tree}))
    search = shown(file)
    named = [(event["type"], event.get("node") or event["context"]) for event in search["events"]]
    assert named == [
        ("step_scored", [0]),
        ("step_scored", [1]),
        ("context_started", read),
        ("step_scored", [*read, 0]),
        ("context_started", first),
        ("step_scored", [*first, 0]),
        ("context_started", second),
        ("step_scored", [*second, 0]),
    ]
    assert [event["sources"] for event in search["events"] if "sources" in event] == [
        [[0], [1]],
        [[1], [0]],
        [[*first, 0], [*read, 0]],
    ]
    assert search["search"]["node"] == [*second, 0]
