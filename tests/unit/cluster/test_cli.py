"""The commands as a user types them: output, exit status, and a sentence instead of a traceback."""

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from endpoint_stand_in import Endpoint, listening, tree_of
from typer.testing import CliRunner, Result

from cluster.cli.main import app
from cluster.evaluation.loop import evaluate
from cluster.evaluation.problem_files import read_problems
from cluster.evaluation.search_field import SearchFieldError, search_field
from cluster.evaluation.training_file import TrainingLine
from search.strategies.catalog import STRATEGIES


def banyan(*arguments: str, key: str = "") -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"BANYAN_API_KEY": key})
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text(
        "".join(json.dumps({"problem": f"q{i}", "answer": "2", "unique_id": f"p/{i}"}) + "\n" for i in range(6))
    )
    return path


class TestProblems:
    def test_writes_json_lines_of_one_level_and_split(self) -> None:
        result = banyan("problems", "--n", "4", "--seed", "1", "--level", "3", "--split", "validation")
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert result.exit_code == 0
        assert len(rows) == 4
        assert {row["level"] for row in rows} == {3}
        assert all(row["unique_id"].startswith("validation/1/") for row in rows)
        assert rows[0].keys() == {"problem", "answer", "level", "unique_id"}

    def test_the_same_seed_gives_the_same_problems(self) -> None:
        assert banyan("problems", "--seed", "1").stdout == banyan("problems", "--seed", "1").stdout
        assert banyan("problems", "--seed", "1").stdout != banyan("problems", "--seed", "2").stdout

    def test_writes_a_file_that_eval_can_read(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        assert banyan("problems", "--n", "3", "--output", str(path)).exit_code == 0
        assert len(read_problems(path).problems) == 3

    @pytest.mark.parametrize(
        "arguments", [("--n", "0"), ("--n", "10001"), ("--n", "many"), ("--level", "6"), ("--split", "x")]
    )
    def test_refuses_what_is_out_of_bounds(self, arguments: tuple[str, str]) -> None:
        assert banyan("problems", *arguments).exit_code == 2

    def test_says_when_it_cannot_write(self, tmp_path: Path) -> None:
        result = banyan("problems", "--output", str(tmp_path / "missing" / "out"))
        assert result.exit_code == 2
        assert "cannot write" in result.stderr


class TestSolve:
    def test_prints_each_scored_step_and_the_answer_as_plain_lines(self, endpoint: Endpoint) -> None:
        endpoint.block = {"written_tokens": 40, "read_tokens": 28, "seconds": 0.2}
        endpoint.block |= {"sample_tokens": 10.4, "prompt_tokens": 20, "sample_seconds": 0.1}
        result = banyan("solve", "1 + 1?", "--url", endpoint.url, "--n", "4", "--seed", "9")
        assert result.exit_code == 0
        assert "0            0.95  1 + 1 = 2\n" in result.stdout
        assert "0.0          0.97  \\boxed{2}  (end)\n" in result.stdout
        assert "answer     2\n" in result.stdout
        assert "30 generated, 12 read from cache" in result.stdout
        assert "40 tokens written and 28 read in 0.2 s; one sample: 10 and 20 in 0.1 s" in result.stdout
        assert endpoint.requests[0]["search"] == {"strategy": "beam_search", "n": 4}
        assert endpoint.requests[0]["seed"] == 9

    def test_a_search_that_broke_off_is_shown_again_from_its_beginning(self, endpoint: Endpoint) -> None:
        endpoint.cut_streams = 1
        result = banyan("solve", "1 + 1?", "--url", endpoint.url)
        assert result.exit_code == 0
        before, _, after = result.stdout.partition("retrying from the beginning: ")
        assert before.count("1 + 1 = 2\n") == 1
        assert after.index("0            0.95  1 + 1 = 2\n") < after.index("answer     2\n")
        assert endpoint.requests[0] == endpoint.requests[1]

    def test_an_effort_replaces_the_strategy(self, endpoint: Endpoint) -> None:
        assert banyan("solve", "1 + 1?", "--url", endpoint.url, "--effort", "high").exit_code == 0
        assert endpoint.requests[0]["reasoning_effort"] == "high"
        assert "search" not in endpoint.requests[0]

    def test_json_is_one_object_and_nothing_else(self, endpoint: Endpoint) -> None:
        reply = json.loads(banyan("solve", "1 + 1?", "--url", endpoint.url, "--json").stdout)
        assert reply["search"]["answer"] == "2"
        assert reply["usage"]["total_tokens"] == 50
        assert reply["question"] == "1 + 1?"

    def test_says_what_to_type_when_nothing_listens(self, nobody: str) -> None:
        result = banyan("solve", "1 + 1?", "--url", nobody)
        assert result.exit_code == 1
        assert "make run" in result.stderr
        assert result.stdout == ""

    def test_says_that_a_key_is_required(self, endpoint: Endpoint) -> None:
        endpoint.api_key = "secret"
        assert "--api-key" in banyan("solve", "?", "--url", endpoint.url).stderr
        assert banyan("solve", "?", "--url", endpoint.url, "--api-key", "secret").exit_code == 0
        assert banyan("solve", "?", "--url", endpoint.url, key='"secret"').exit_code == 0

    def test_says_which_proxy_of_the_environment_cannot_be_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
        result = banyan("solve", "?", "--url", "http://example.invalid")
        assert result.exit_code == 1
        [line] = result.stderr.splitlines()
        assert line.startswith("banyan: the environment's ALL_PROXY cannot be used: ")

    @pytest.mark.parametrize(
        ("question", "option"),
        [("-5 + 3 = ?", "-5"), ("-x = 3", "-x"), ("-(2 + 3)", "-("), ("--5 is what?", "--5 is what?")],
    )
    def test_says_how_a_question_that_begins_with_a_minus_is_typed(
        self, endpoint: Endpoint, question: str, option: str
    ) -> None:
        refused = banyan("solve", question, "--url", endpoint.url)
        assert refused.exit_code == 2
        assert f"No such option: {option}" in refused.stderr
        assert refused.stderr.rstrip().endswith("solve [OPTIONS] -- QUESTION")
        assert banyan("solve", "--url", endpoint.url, "--", question).exit_code == 0
        assert endpoint.requests[0]["messages"][0]["content"] == question

    def test_reads_a_question_in_the_locale_c(self, endpoint: Endpoint) -> None:
        typed = "“2”… 得".encode().decode("ascii", errors="surrogateescape")
        assert banyan("solve", typed, "--url", endpoint.url).exit_code == 0
        assert endpoint.requests[0]["messages"][0]["content"] == "“2”… 得"
        refused = banyan("solve", "2\udcff", "--url", endpoint.url)
        assert (refused.exit_code, "it is not UTF-8" in refused.stderr) == (2, True)

    def test_h_is_help(self) -> None:
        assert banyan("solve", "-h").stdout == banyan("solve", "--help").stdout

    def test_a_misspelt_option_is_no_question(self, endpoint: Endpoint) -> None:
        refused = banyan("solve", "1 + 1?", "--stategy", "greedy", "--url", endpoint.url)
        assert "Possible options: --strategy" in refused.stderr
        assert " -- " not in refused.stderr

    @pytest.mark.parametrize(
        ("rule", "said"),
        [
            ({"selection": "weighted"}, "vote       62% of the weight (score times samples), 19% of the samples"),
            ({"selection": "majority"}, "vote       19% of the samples"),
            ({"selection": "naive"}, "vote       the best score, 19% of the samples"),
            ({}, "vote       19% of the samples"),
        ],
    )
    def test_says_what_decided(self, endpoint: Endpoint, rule: dict[str, str], said: str) -> None:
        answers = [{"answer": "2", "vote": 0.62, "paths": 3, "share": 0.19, "weight": 1.5, "score": 0.97}]
        endpoint.block = {"agreement": 0.19, "answers": answers, **rule}
        assert said in banyan("solve", "1 + 1?", "--url", endpoint.url).stdout.splitlines()

    def test_refuses_an_unknown_strategy_without_asking(self, endpoint: Endpoint) -> None:
        result = banyan("solve", "?", "--url", endpoint.url, "--strategy", "magic")
        assert result.exit_code == 2
        assert "beam_search" in result.stderr
        assert endpoint.requests == []


class TestEval:
    def test_prints_a_table_and_writes_a_row_per_problem(
        self, endpoint: Endpoint, problem_file: Path, tmp_path: Path
    ) -> None:
        endpoint.answers = {"q1": "3"}
        out = tmp_path / "result.json"
        result = banyan(
            "eval", "--problems", str(problem_file), "--url", endpoint.url, "--json", str(out),
            "--strategy", "greedy", "--strategy", "beam_search",
        )  # fmt: skip
        assert result.exit_code == 0
        assert "5/6" in result.stdout
        assert "83.3%" in result.stdout
        report: dict[str, Any] = json.loads(out.read_text())
        assert report["complete"] is True
        assert len(report["rows"]) == 12
        assert [row["right"] for row in report["rows"][:6]] == [True, False, True, True, True, True]
        assert [summary["strategy"] for summary in report["strategies"]] == ["greedy", "beam_search"]
        assert report["strategies"][0]["interval"]["method"] == "wilson"

    def test_kv_usage_is_requested_and_shown_on_demand(self, endpoint: Endpoint, problem_file: Path) -> None:
        arguments = ("eval", "--problems", str(problem_file), "--url", endpoint.url, "--strategy", "greedy")
        plain = banyan(*arguments)
        assert endpoint.requests[0]["search"] == {"strategy": "greedy"}
        assert "KV" not in plain.stdout
        endpoint.requests.clear()
        asked = banyan(*arguments, "--kv")
        assert endpoint.requests[0]["search"] == {"strategy": "greedy", "kv_usage": True}
        assert "KV tokens held" in " ".join(asked.stdout.split())
        assert "4,096" in asked.stdout

    def test_a_bad_line_is_named_and_nothing_is_sent(self, endpoint: Endpoint, problem_file: Path) -> None:
        problem_file.write_text(problem_file.read_text() + "{\n")
        arguments = ("eval", "--problems", str(problem_file), "--url", endpoint.url, "--strategy", "greedy")
        refused = banyan(*arguments)
        assert refused.exit_code == 2
        assert "line 7: not JSON" in refused.stderr
        assert endpoint.requests == []
        skipped = banyan(*arguments, "--on-bad-line", "skip")
        assert skipped.exit_code == 0
        assert "skipped line 7: not JSON" in skipped.stdout
        assert len(endpoint.requests) == 6

    def test_failures_are_counted_and_fatal_only_if_all_problems_fail(
        self, endpoint: Endpoint, problem_file: Path
    ) -> None:
        arguments = ("eval", "--problems", str(problem_file), "--url", endpoint.url, "--strategy", "greedy")
        endpoint.broken_questions = {"q1"}
        some = banyan(*arguments)
        assert some.exit_code == 0
        assert "1 × Refused: the generator failed" in some.stdout
        endpoint.broken_questions = {f"q{index}" for index in range(6)}
        every = banyan(*arguments)
        assert every.exit_code == 1
        assert "every request failed" in every.stderr

    def test_the_limit_takes_the_first_problems(self, endpoint: Endpoint, problem_file: Path) -> None:
        banyan("eval", "--problems", str(problem_file), "--url", endpoint.url, "--strategy", "greedy", "--limit", "2")
        assert {body["messages"][0]["content"] for body in endpoint.requests} == {"q0", "q1"}

    def test_says_when_nothing_listens_or_nothing_can_be_written(
        self, nobody: str, problem_file: Path, tmp_path: Path
    ) -> None:
        arguments = ("eval", "--problems", str(problem_file), "--url", nobody, "--strategy", "greedy")
        assert "make run" in banyan(*arguments).stderr
        unwritable = banyan(*arguments, "--json", str(tmp_path / "missing" / "out.json"))
        assert unwritable.exit_code == 2
        assert "no such directory" in unwritable.stderr


class TestDefaultAddress:
    """Without --url: what runs at the default address if it is Banyan, else an application of its own."""

    @pytest.fixture(autouse=True)
    def default(self, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr("cluster.cli.endpoint.DEFAULT_URL", endpoint.url)

    @pytest.fixture
    def own(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Endpoint, list[Path | None]]]:
        """The application that the command would start, and the configs with which it was started."""
        started: list[Path | None] = []
        with listening() as other:

            def start(_stack: Any, config: Path | None, _console: Any) -> str:
                started.append(config)
                return other.url

            monkeypatch.setattr("cluster.cli.endpoint._own_application", start)
            yield other, started

    @pytest.mark.parametrize("command", ["eval", "batch"])
    def test_the_application_there_is_used_and_named(
        self, command: str, endpoint: Endpoint, problem_file: Path, tmp_path: Path
    ) -> None:
        report = tmp_path / "report.json"
        given = ("--problems", str(problem_file)) if command == "eval" else (str(problem_file), str(tmp_path / "out"))
        result = banyan(command, *given, "--strategy", "greedy", "--json", str(report))
        assert result.exit_code == 0
        assert result.stdout.startswith(f"the application at {endpoint.url}\n")
        assert len(endpoint.requests) == 6
        settings: dict[str, Any] = json.loads(report.read_text())["settings"]
        assert settings["endpoint"] == endpoint.url

    def test_one_that_wants_a_key_says_so(self, endpoint: Endpoint, problem_file: Path) -> None:
        endpoint.api_key = "secret"
        arguments = ("eval", "--problems", str(problem_file), "--strategy", "greedy")
        refused = banyan(*arguments)
        assert refused.exit_code == 1
        assert "--api-key" in refused.stderr
        assert banyan(*arguments, "--api-key", "secret").exit_code == 0
        assert banyan(*arguments, "--api-key", '"secret"').exit_code == 0

    @pytest.mark.parametrize("why", ["another server", "nobody", "a config"])
    def test_otherwise_one_of_its_own_is_started(
        self,
        why: str,
        endpoint: Endpoint,
        nobody: str,
        own: tuple[Endpoint, list[Path | None]],
        problem_file: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        other, started = own
        endpoint.owner = "vllm" if why == "another server" else "banyan"
        if why == "nobody":
            monkeypatch.setattr("cluster.cli.endpoint.DEFAULT_URL", nobody)
        config = ("--config", "mine.yaml") if why == "a config" else ()
        result = banyan("eval", "--problems", str(problem_file), "--strategy", "greedy", *config)
        assert result.exit_code == 0
        assert started == [Path("mine.yaml") if config else None]
        assert (len(endpoint.requests), len(other.requests)) == (0, 6)


class TestExport:
    def test_writes_every_tree_with_its_values_and_summarizes_them(
        self, endpoint: Endpoint, problem_file: Path, tmp_path: Path
    ) -> None:
        endpoint.trees = {"q1": tree_of("2", "3", "4", "5"), "q4": tree_of("3", "4", logprobs=(-2.0, -1.0))}
        endpoint.broken_questions = {"q2"}
        out, report = tmp_path / "trees.jsonl", tmp_path / "result.json"
        out.write_text("of an earlier evaluation")
        result = banyan(
            "eval", "--problems", str(problem_file), "--url", endpoint.url, "--seed", "3",
            "--export", str(out), "--json", str(report), "--strategy", "beam-8", "--strategy", "greedy",
        )  # fmt: skip
        assert result.exit_code == 0
        closing = f"exported 10 trees, 2 correct paths of hard problems, 2 incorrect paths to {out}"
        assert result.stdout.splitlines()[-1] == f"{closing}; 2 failed problems left out"
        lines = [TrainingLine.model_validate_json(text) for text in out.read_text().splitlines()]
        names = ["p/0", "p/1", "p/3", "p/4", "p/5"]
        assert [(line.strategy, line.unique_id) for line in lines] == [
            (strategy, name) for strategy in ("beam-8", "greedy") for name in names
        ]
        assert [line.accuracy for line in lines[:5]] == [1.0, 0.25, 1.0, 0.0, 1.0]
        assert [node.value for node in lines[1].nodes] == [0.5, 1.0, -1.0, -1.0, -1.0]
        assert [example.path[-1] for line in lines[:5] for example in line.examples] == [(0, 0), (0, 1)]
        assert endpoint.requests[0]["search"] == {"strategy": "beam_search", "n": 8, "logprobs": True}
        asked = {body["messages"][0]["content"]: body["seed"] for body in endpoint.requests}
        assert {f"p/{number}": asked[f"q{number}"] for number in (0, 1, 3, 4, 5)} == {
            line.unique_id: line.seed for line in lines
        }
        assert json.loads(report.read_text())["settings"]["strategies"]["greedy"] == {
            "strategy": "greedy",
            "logprobs": True,
        }

    def test_an_interruption_keeps_the_finished_lines(
        self, endpoint: Endpoint, problem_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def interrupted(ask: Any, problems: Any, *others: Any) -> None:
            await evaluate(ask, problems[:2], *others)
            raise KeyboardInterrupt

        monkeypatch.setattr("cluster.cli.evaluate.evaluate", interrupted)
        out = tmp_path / "trees.jsonl"
        arguments = ("eval", "--problems", str(problem_file), "--strategy", "greedy", "--export", str(out))
        result = banyan(*arguments, "--url", endpoint.url)
        assert result.exit_code == 130
        assert "interrupted" in result.stdout
        lines = [TrainingLine.model_validate_json(text) for text in out.read_text().splitlines()]
        assert [line.unique_id for line in lines] == ["p/0", "p/1"]
        assert sorted(tmp_path.iterdir()) == [problem_file, out]

    def test_if_every_request_fails_an_earlier_file_stays(
        self, endpoint: Endpoint, problem_file: Path, tmp_path: Path
    ) -> None:
        endpoint.broken_questions = {f"q{number}" for number in range(6)}
        out = tmp_path / "trees.jsonl"
        out.write_text("of an earlier evaluation")
        arguments = ("eval", "--problems", str(problem_file), "--strategy", "greedy", "--export", str(out))
        result = banyan(*arguments, "--url", endpoint.url)
        assert result.exit_code == 1
        assert "exported nothing" in result.stdout
        assert out.read_text() == "of an earlier evaluation"

    def test_an_unwritable_file_is_refused_before_anything_is_sent(
        self, endpoint: Endpoint, problem_file: Path, tmp_path: Path
    ) -> None:
        arguments = ("eval", "--problems", str(problem_file), "--url", endpoint.url, "--strategy", "greedy")
        for path, complaint in (
            (tmp_path / "missing" / "out", "no such directory"),
            (tmp_path, "it is a directory"),
            (problem_file, "must be different files"),
            (tmp_path / "same", "must be different files"),
        ):
            result = banyan(*arguments, "--export", str(path), "--json", str(tmp_path / "same"))
            assert result.exit_code == 2
            assert complaint in result.stderr
        assert endpoint.requests == []
        assert list(tmp_path.iterdir()) == [problem_file]


class TestStrategies:
    def test_lists_every_strategy(self) -> None:
        result = banyan("strategies")
        assert result.exit_code == 0
        for name, strategy in STRATEGIES.items():
            [line] = [line for line in result.stdout.splitlines() if line.startswith(f"{name} ")]
            assert all(alias in line for alias in strategy.aliases)
        assert "token-level beam search" in result.stdout.lower()
        assert "/v1/completions" in result.stdout

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_shows_every_setting_with_default_and_meaning(self, name: str) -> None:
        result = banyan("strategies", name)
        assert result.exit_code == 0
        for setting, field in STRATEGIES[name].model_fields.items():
            if setting != "name":
                given = [*field.default] if isinstance(field.default, tuple) else field.default
                default = "unset" if given is None else str(given)
                rows = [line.split() for line in result.stdout.splitlines()]
                assert any(row[:2] == [setting, default] and len(row) > 3 for row in rows)

    def test_an_unknown_strategy_is_refused_with_the_list(self) -> None:
        result = banyan("strategies", "clairvoyance")
        assert result.exit_code == 2
        assert "ab_mcts" in result.stderr


class TestSearchField:
    @pytest.mark.parametrize(
        ("written", "field"),
        [
            ("greedy", {"strategy": "greedy"}),
            ("beam-8", {"strategy": "beam_search", "n": 8}),
            ("dvts:m=8", {"strategy": "dvts", "m": 8, "n": 16}),
            ("dvts:n=32,m=8", {"strategy": "dvts", "m": 8, "n": 32}),
            ("mcts:value=both,accept=0.9", {"strategy": "mcts", "value": "both", "accept": 0.9}),
            (
                "ab_mcts:budget.tokens=900,budget.nodes=50",
                {"strategy": "ab_mcts", "budget": {"tokens": 900, "nodes": 50}},
            ),
            (
                "sc-4:risk=0.05,rounds=[1,1,2],max_depth=8",
                {"strategy": "self_consistency", "n": 4, "risk": 0.05, "rounds": [1, 1, 2], "max_depth": 8},
            ),
        ],
    )
    def test_settings_follow_the_name(self, written: str, field: dict[str, Any]) -> None:
        assert search_field(written, 16) == field

    def test_a_custom_strategy_is_named_by_its_import_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "my_widest.py").write_text(
            "from typing import Literal\n"
            "from search import Strategy\n"
            "from search.caps import Width\n"
            "class Widest(Strategy):\n"
            "    name: Literal['widest'] = 'widest'\n"
            "    n: Width = 4\n"
            "    def select(self, tree): return []\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        assert search_field("my_widest:Widest:n=8,budget.tokens=100", 16) == {
            "strategy": "widest",
            "n": 8,
            "budget": {"tokens": 100},
        }

    @pytest.mark.parametrize(
        ("written", "complaint"),
        [
            ("clairvoyance", "unknown strategy"),
            ("nowhere.at_all:Widest", "nowhere"),
            ("search.budget:Budget:n=4", "is not a strategy"),
            ("beam-0", "greater than or equal to 1"),
            ("dvts:m=5", "n = 16 is not a multiple of m = 5"),
            ("dvts:m", "write key=value"),
            ("dvts:m=", "write key=value"),
            ("dvts:=3", "write key=value"),
            ("dvts:widht=3", "widht: Extra inputs"),
            ("dvts:m=many", "m: Input should be a valid integer"),
            ("dvts:budget=3,budget.tokens=4", "cannot both be set"),
            ("dvts:budget.tokens=0", "budget.tokens"),
        ],
    )
    def test_errors_name_the_wrong_setting(self, written: str, complaint: str) -> None:
        with pytest.raises(SearchFieldError, match=re.escape(complaint)):
            search_field(written, 16)


class TestOutput:
    @pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
    @pytest.mark.parametrize(
        "arguments", [("solve", "得?", "--n", "4"), ("solve", "得?", "--json"), ("strategies", "mcts"), ("--help",)]
    )
    def test_what_the_terminal_cannot_write_is_written_in_ascii(
        self, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, encoding: str, arguments: tuple[str, ...]
    ) -> None:
        endpoint.answers = {"得?": "得"}
        written = {
            name: io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for name in ("stdout", "stderr")
        }
        for name, stream in written.items():
            monkeypatch.setattr(sys, name, stream)
        asked = ("--url", endpoint.url) if arguments[0] == "solve" else ()
        with pytest.raises(SystemExit) as ended:
            app([*arguments, *asked])
        assert ended.value.code == 0
        text = written["stdout"].buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
        assert text.strip()
        if arguments[:1] == ("solve",) and "--json" not in arguments:
            assert "answer     \\u5f97" in text
