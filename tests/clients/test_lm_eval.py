"""lm-eval as published, on a task of its own kind: its score equals that of ``banyan eval`` on the same answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.bodies import assert_recorded
from tests.clients.commands import HERE, banyan, program_of, run
from tests.clients.replay_proxy import ReplayProxy, replaying

PROBLEMS = 100

pytestmark = pytest.mark.timeout(2400)


def lm_eval(proxy: ReplayProxy, model: str, directory: Path) -> tuple[float, dict[str, float]]:
    """Score of the task, and of each problem by its ``unique_id``."""
    arguments = f"model={model},base_url={proxy.url}/v1/chat/completions,num_concurrent=8,max_retries=1"
    output = directory / "lm_eval"
    task = ["--tasks", "banyan_arithmetic", "--include_path", str(HERE), "--apply_chat_template"]
    logs = ["--output_path", str(output), "--log_samples"]
    model_is = ["--model", "local-chat-completions", "--model_args", arguments]
    run([str(program_of("lm_eval", "lm-eval")), "run", *model_is, *task, *logs], directory)
    [results] = output.rglob("results_*.json")
    [samples] = output.rglob("samples_*.jsonl")
    logged = [json.loads(line) for line in samples.read_text().splitlines()]
    score: float = json.loads(results.read_text())["results"]["banyan_arithmetic"]["exact_match,boxed"]
    return score, {sample["doc"]["unique_id"]: sample["exact_match"] for sample in logged}


def asking(question: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same request with another question."""
    [turn] = body["messages"]
    return {**body, "messages": [{**turn, "content": question}]}


def banyan_eval(proxy: ReplayProxy, strategy: str, directory: Path) -> tuple[float, dict[str, float]]:
    """The same from ``banyan eval``."""
    report = directory / "eval.json"
    file = str(report)
    banyan(
        directory, "eval", "--problems", "problems.jsonl", "--strategy", strategy, "--url", proxy.url, "--json", file
    )
    written: dict[str, Any] = json.loads(report.read_text())
    [summary] = written["strategies"]
    return summary["right"] / summary["problems"], {row["problem_id"]: float(row["right"]) for row in written["rows"]}


@pytest.mark.parametrize(
    ("model", "strategy", "temperature"),
    [("banyan-arithmetic", "beam_search", 0.8), ("banyan-arithmetic:greedy", "greedy", 0.0)],
)
def test_lm_eval_and_banyan_eval_give_the_same_score(
    endpoint: str, tmp_path: Path, model: str, strategy: str, temperature: float
) -> None:
    banyan(tmp_path, "problems", "--n", str(PROBLEMS), "--seed", "23", "--output", "problems.jsonl")
    with replaying(endpoint) as proxy:
        score, each = lm_eval(proxy, model, tmp_path)
        assert proxy.failures == []
        assert len(proxy.requests) == PROBLEMS
        assert_recorded("lm_eval", (("/v1/chat/completions", asking("6*7?", body)) for body in proxy.requests))
        for reply in proxy.replies:
            assert reply["search"]["strategy"] == strategy
            assert reply["search"]["temperature"] == temperature
            assert len(reply["search"]["notes"]) == (1 if temperature else 0)
        own_score, own_each = banyan_eval(proxy, strategy, tmp_path)
        assert len(proxy.replies) == PROBLEMS  # all of them replayed
    print(f"{model}: lm-eval {score:.4f}, banyan eval {own_score:.4f}, {sum(each.values()):.0f} of {len(each)} right")
    assert len(each) == PROBLEMS
    assert each == own_each
    assert score == pytest.approx(own_score)
    assert 0.2 < score < 1
