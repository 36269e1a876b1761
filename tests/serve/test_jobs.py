"""Jobs on the served application give the same answers over HTTP and through the controllers' handles."""

import asyncio
import json
import random
from itertools import islice
from pathlib import Path

from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.client.client import Client
from cluster.client.errors import Refused
from cluster.client.handles import URL, HandleTransport
from cluster.client.replies import Completion, Question
from cluster.jobs.inputs import look_at
from cluster.jobs.outputs import Identity, Outputs
from cluster.jobs.run import Job, Settings
from cluster.jobs.window import Window
from deployments.embedded.problems import Split, check_steps, draw_problems
from scripts.embedded.slips import solution_with_slips
from search.settings import parse_search
from tests.serve.application import BEAM, Application, problems, request

TIMEOUT_S = 120.0


def test_a_batch_file_gets_the_replies_of_the_same_requests(idle: Application, tmp_path: Path) -> None:
    asked = [request(problem, seed) for seed, problem in enumerate(problems(4, seed=61))]
    lines = [
        {"custom_id": f"r-{index}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for index, body in enumerate(asked)
    ]
    lines.append({"custom_id": "wide", "method": "POST", "url": "/v1/chat/completions", "body": {**asked[0], "n": 0}})
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = CliRunner().invoke(app, ["batch", str(given), str(out), "--url", idle.url, "--api-key", idle.key])
    assert ended.exit_code == 0, ended.output
    replies = {line["custom_id"]: line["response"] for line in map(json.loads, out.read_text().splitlines())}
    plain = {f"r-{index}": idle.http.post("/v1/chat/completions", json=body).json() for index, body in enumerate(asked)}
    assert replies.keys() == plain.keys()
    for custom_id, reply in plain.items():
        assert replies[custom_id]["status_code"] == 200
        assert replies[custom_id]["body"]["choices"] == reply["choices"]
        assert replies[custom_id]["body"]["search"]["answers"] == reply["search"]["answers"]
    [refused] = map(json.loads, (tmp_path / "out.errors.jsonl").read_text().splitlines())
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("wide", 400)
    assert refused["response"]["body"]["error"]["param"] == "n"


def test_check_prm_tells_that_the_embedded_reward_model_knows_its_steps(idle: Application, tmp_path: Path) -> None:
    rng = random.Random(63)
    lines = []
    for problem in islice(draw_problems(Split.VALIDATION, seed=63), 24):
        for _ in range(4):
            steps = list(solution_with_slips(problem, rng))
            verdicts = check_steps(problem, steps)
            known = {"label": -1 if all(verdicts) else verdicts.index(False), "final_answer_correct": verdicts[-1]}
            lines.append({"problem": problem.text, "steps": steps, **known})
    given, output, plot = tmp_path / "in.jsonl", tmp_path / "out.json", tmp_path / "plot.svg"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ("--output", str(output), "--plot", str(plot))
    ended = CliRunner().invoke(app, ["check-prm", str(given), "--url", idle.url, "--api-key", idle.key, *files])
    assert ended.exit_code == 0, ended.output
    summary = json.loads(output.read_text())["summary"]
    assert (summary["solutions"], summary["failed"]) == (len(lines), 0)
    assert summary["auc"] > 0.9
    assert summary["first_mistakes"]["f1"] > 0.8
    assert summary["outcomes"]["min"]["best_of_n"]["best"] >= summary["outcomes"]["min"]["best_of_n"]["majority"]
    assert "ROC curve" in plot.read_text()


def test_handles_return_and_refuse_the_same_as_http(idle: Application) -> None:
    problem = problems(1, seed=62)[0]
    question = Question(problem.text, {**BEAM, "logprobs": True}, seed=5, tree=True)

    async def by_handle() -> tuple[Completion, Refused]:
        async with Client(URL, timeout_s=TIMEOUT_S, transport=HandleTransport(Application.NAME)) as client:
            reply = await client.ask(question)
            try:
                await client.post("/v1/chat/completions", {"model": "nobody's", "messages": []})
            except Refused as error:
                return reply, error
            raise AssertionError("it was not refused")

    async def by_http() -> Completion:
        async with Client(idle.url, idle.key, TIMEOUT_S) as client:
            return await client.ask(question)

    reply, refused = idle.run(by_handle())
    same = asyncio.run(by_http())
    assert reply.tree is not None
    assert reply.tree == same.tree
    assert reply.text == same.text
    assert refused.status == 400
    ends = [node for node in reply.tree.nodes if node.token_logprobs]
    assert ends
    assert reply.prompt_token_ids
    for node in ends:
        assert len(node.token_ids or ()) == len(node.token_logprobs or ()) == node.tokens
        assert node.logprob is not None
        assert abs(sum(node.token_logprobs or ()) - node.logprob) < 1e-6


def test_a_job_through_handles_adapts_to_the_number_of_places(idle: Application, tmp_path: Path) -> None:
    """With more concurrent searches than slots, refusals slow the job down, and every line has its result."""
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(problem.as_json()) + "\n" for problem in problems(12, seed=63)))
    found = look_at(given)
    search = {**BEAM, "n": 4}

    async def job() -> list[dict[str, object]]:
        transport = HandleTransport(Application.NAME)
        async with Client(URL, timeout_s=TIMEOUT_S, transport=transport, waits_for_room=False) as client:
            identity = Identity(
                input_sha256=found.sha256,
                input_kind=found.kind,
                lines=found.lines,
                model=await client.model(),
                search=search,
                seed=0,
                trees=False,
            )
            with Outputs(out, identity, found.last) as outputs:
                await Job(found, outputs, Settings("beam_search", search), client, Window(64)).run()
                return list(outputs.results())

    rows = idle.run(job())
    assert sorted(int(str(row["line"])) for row in rows) == list(range(1, 13))
    strategy = parse_search(search).strategy
    assert strategy.name == "beam_search"
    for row in rows:
        # The vote over all paths of the row gives the answer of the row.
        paths = row["paths"]
        assert isinstance(paths, list)
        if paths and row["answer"] is not None:
            weights: dict[int, float] = {}
            for path in paths:
                if path["group"] is not None:
                    weight = path["score"] * path["votes"] * path["samples"]
                    weights[path["group"]] = weights.get(path["group"], 0.0) + weight
            won = max(weights, key=weights.__getitem__)
            assert row["answer"] in {path["answer"] for path in paths if path["group"] == won}
