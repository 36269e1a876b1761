"""``banyan check-select``: the card of a reader is that of its searches; it recommends what is better than the vote."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from endpoint_stand_in import Endpoint
from pydantic import Field, ValidationError
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.cli.serve import card_warnings
from cluster.evaluation.card_fit import TooFewProblems
from cluster.evaluation.loop import Plan
from cluster.evaluation.reader_check import THRESHOLDS, ReadingPlan, ReadProblem, fit_reader_card
from cluster.launch.config_file import BUILDER
from deployments.config import AppConfig
from search.reader_card import ReaderCard
from search.strategies.solutions.self_consistency import SelfConsistency
from search.tree import FIRST_CONTEXT

READING = ReadingPlan(f"{__name__}:Picks:risk=0.1", Plan(n=8))


def problems(count: int, share: float, vote: bool, read: bool, pool: bool = True) -> list[ReadProblem]:
    tokens = (0, 0) if share == 1 else (30, 90)
    return [ReadProblem(share, vote, read, pool, 100, *tokens)] * count


AGREED = problems(40, 1.0, True, True)
CLEAR_LOST = problems(10, 0.6, True, False)
"""Reading costs the right answer where the vote is fairly clear."""
CONTESTED_WON = problems(20, 0.4, False, True)


def card_of(*read: list[ReadProblem]) -> ReaderCard:
    return fit_reader_card([each for some in read for each in some], READING, "a-model", "problems.jsonl")


def test_the_figures_of_a_card_are_those_of_its_problems() -> None:
    card = card_of(AGREED, CLEAR_LOST, CONTESTED_WON)
    assert (card.strategy, card.settings, card.samples) == ("picks", {"n": 8, "risk": 0.1}, 8)
    assert (card.problems, card.vote, card.pool, card.solution_tokens) == (70, round(50 / 70, 4), 1.0, 100)
    at = {each.contested: each for each in card.readings}
    assert [(each.problems, each.vote, each.read) for each in card.readings] == [
        *((0, 0.0, 0.0), (20, 0.0, 1.0), (30, round(1 / 3, 4), round(2 / 3, 4)), (30, round(1 / 3, 4), round(2 / 3, 4)))
    ]
    assert at[0.5].gain.accuracy == 1.0
    assert at[0.5].gain.difference == pytest.approx(20 / 70, abs=1e-4)
    assert at[1.0].gain.difference == pytest.approx(10 / 70, abs=1e-4)
    assert at[0.5].written_tokens == pytest.approx(20 * 30 / 70, abs=1e-4)
    assert at[1.0].prompt_tokens == pytest.approx(30 * 90 / 70, abs=1e-4)


def test_what_is_recommended_reads_least_of_what_no_other_beats() -> None:
    card = card_of(AGREED, CLEAR_LOST, CONTESTED_WON)
    assert (card.helps, card.best.contested) == (True, 0.5)
    assert card.verdict.startswith("picks helps with this model: the majority of 8 was right in 71.4%, picks where the")
    both = card_of(AGREED, problems(30, 0.6, False, True), CONTESTED_WON)
    assert both.best.contested == 0.7


def test_a_reader_without_a_gain_beyond_chance_is_not_recommended() -> None:
    worse = card_of(AGREED, CLEAR_LOST, problems(10, 0.4, True, False))
    assert (worse.helps, worse.use) == (False, None)
    assert worse.verdict.startswith("Not recommended with this model: the majority of 8 was right in 100.0%, picks ")
    lucky = card_of(AGREED, problems(5, 0.4, True, False), problems(7, 0.4, False, True))
    assert not lucky.helps
    assert lucky.best.gain.difference == pytest.approx(2 / 52, abs=1e-4)


def test_few_problems_make_no_card() -> None:
    with pytest.raises(TooFewProblems, match="problems: 12, of which 12 have a right solution and another one"):
        card_of(problems(12, 0.4, False, True))
    with pytest.raises(TooFewProblems, match="problems: 47, of which 7"):
        card_of(AGREED, problems(7, 0.4, False, True))


def test_a_card_says_how_many_readers_named_no_solution() -> None:
    silent = [each._replace(readings=4, abstained=3) for each in CONTESTED_WON[:10]]
    card = card_of(AGREED, silent, [each._replace(readings=4) for each in CONTESTED_WON[10:]])
    assert card.abstained == 0.375
    assert card.verdict.endswith("37.5% of the readers named no solution they were shown.")
    assert card_of(AGREED, CONTESTED_WON).abstained is None


@pytest.mark.parametrize(
    ("strategy", "samples", "thresholds"),
    [
        ("select:n=4", 4, THRESHOLDS),
        ("fuse:rounds=1", 8, THRESHOLDS),
        ("fuse", 8, (1.0,)),
        ("fuse:schedule=[16,4,1]", 16, (1.0,)),
        (READING.strategy, 8, THRESHOLDS),
    ],
)
def test_only_thresholds_that_one_search_tells_about_are_compared(
    strategy: str, samples: int, thresholds: tuple[float, ...]
) -> None:
    card = fit_reader_card([*AGREED, *CLEAR_LOST, *CONTESTED_WON], ReadingPlan(strategy, Plan(n=8)))
    assert card.samples == samples
    assert tuple(reading.contested for reading in card.readings) == thresholds
    assert card.use is None or card.readings[card.use].gain.low > 0


class Picks(SelfConsistency):
    """Stands for a strategy that reads its solutions."""

    aliases = ()
    name: Literal["picks"] = "picks"  # type: ignore[assignment]
    contested: float = Field(0.5, ge=0, le=1)


PICKS = f"{__name__}:Picks"


def read_tree(*answers: str) -> dict[str, Any]:
    """A tree of one solution for each answer, of 6 tokens, and a reader of 4 that chose the first."""
    nodes = [solution([index], rf"\boxed{{{answer}}}", 6) for index, answer in enumerate(answers)]
    context = [0, FIRST_CONTEXT]
    read = solution([*context, 0], "Judgment: 0", 4)
    told = {"id": context, "sources": [[0], [1]], "template": "select", "note": "", "prompt_tokens": 50, "digest": "a"}
    return {"version": 3, "nodes": [*nodes, read], "contexts": [told]}


def solution(node_id: list[int], text: str, tokens: int) -> dict[str, Any]:
    return {"id": node_id, "text": text, "reward": None, "status": "terminal", "tokens": tokens, "logprob": None}


def test_the_command_compares_the_readers_with_the_vote_over_the_same_solutions(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    questions = [f"{index}?" for index in range(24)]
    file = tmp_path / "problems.jsonl"
    lines = [json.dumps({"problem": question, "answer": "2"}) for question in [*questions, "broken?"]]
    file.write_text("\n".join(lines))
    endpoint.broken_questions = {"broken?"}
    endpoint.trees = dict.fromkeys(questions, read_tree("2", "3", "3")) | {"0?": read_tree("2", "2.0", "3")}
    endpoint.block = {"generated_tokens": 22, "context_prompt_tokens": 50}
    endpoint.block["readers"] = [{"chosen": [0], "text": "Judgment: 0"}, {"chosen": None, "text": "Judgment: 3"}]
    output, card_file = tmp_path / "out.json", tmp_path / "card.json"
    options = [
        "--strategy",
        PICKS,
        "--n",
        "3",
        "--url",
        endpoint.url,
        "--output",
        str(output),
        "--card",
        str(card_file),
    ]
    done = CliRunner().invoke(app, ["check-select", str(file), *options, "--timeout", "60"])
    assert done.exit_code == 0, done.output
    searches = [request["search"] for request in endpoint.requests]
    assert all(search == {"strategy": "picks", "n": 3, "contested": 1.0} for search in searches)
    card = ReaderCard.model_validate_json(card_file.read_text())
    assert (card.problems, card.samples, card.strategy, card.solution_tokens) == (24, 3, "picks", 18.0)
    # Of one vote two of three are right, of the others two wrong: shares of 2/3. The readers chose 2, the right one.
    assert [(each.contested, each.problems) for each in card.readings] == [(0.35, 0), (0.5, 0), (0.7, 24), (1.0, 24)]
    assert (card.vote, card.best.read, card.best.contested) == (round(1 / 24, 4), 1.0, 0.7)
    assert (card.best.written_tokens, card.best.prompt_tokens) == (4.0, 50.0)
    assert card.abstained == 0.5
    assert "picks helps with this model" in done.output
    assert "1 × " in done.output
    report = json.loads(output.read_text())
    assert (report["complete"], report["failed"], len(report["problems"])) == (True, 1, 24)


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("sc", "sc: is no strategy that reads its solutions where they are contested"),
        (f"{PICKS}:contested=0.5", "leave out contested, which is what the check recommends"),
        (f"{PICKS}:risky=1", "Extra inputs are not permitted"),
    ],
)
def test_a_strategy_that_cannot_be_measured_is_refused_before_anything_is_sent(
    endpoint: Endpoint, tmp_path: Path, strategy: str, told: str
) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps({"problem": "1?", "answer": "2"}))
    done = CliRunner().invoke(app, ["check-select", str(file), "--strategy", strategy, "--url", endpoint.url])
    assert done.exit_code == 2, done.output
    assert told in " ".join(done.output.split())
    assert endpoint.requests == []


def test_a_card_decides_where_votes_are_contested_and_warns_where_reading_is_not_recommended() -> None:
    helping, worthless = (card_of(AGREED, won, CONTESTED_WON) for won in (CLEAR_LOST, problems(40, 0.4, True, False)))
    picks, other = Picks(), SelfConsistency()
    assert helping.defaults(Picks, {}) == {"contested": 0.5}
    assert helping.defaults(Picks, {"contested": 0.9}) == helping.defaults(SelfConsistency, {}) == {}
    assert worthless.defaults(Picks, {}) == {}
    assert (helping.note(picks), worthless.note(other)) == (None, None)
    note = worthless.note(picks)
    assert note is not None
    assert note.startswith("Not recommended with this model: the majority of 8 was right in 80.0%, picks in ")


def test_serve_warns_of_reading_that_is_worth_nothing() -> None:
    helping, worthless = (card_of(AGREED, won, CONTESTED_WON) for won in (CLEAR_LOST, problems(40, 0.4, True, False)))
    served = [
        {"applications": [{"import_path": BUILDER, "args": {"controller": {"reader_card": card.model_dump()}}}]}
        for card in (helping, worthless)
    ]
    assert [card_warnings(each) for each in served] == [[], [worthless.verdict]]


def test_a_card_is_read_where_settings_are_checked(tmp_path: Path) -> None:
    card, file = card_of(AGREED, CLEAR_LOST, CONTESTED_WON), tmp_path / "card.json"
    file.write_text(card.model_dump_json())
    for given in (str(file), card.model_dump(mode="json")):
        config = AppConfig.model_validate({"controller": {"reader_card": given}})
        assert config.controller.reader_card == card
    file.write_text("{}")
    with pytest.raises(ValidationError, match=r"card\.json is no card: strategy: Field required"):
        AppConfig.model_validate({"controller": {"reader_card": str(file)}})
    with pytest.raises(ValidationError, match="`banyan check-select --card` writes one"):
        AppConfig.model_validate({"controller": {"reader_card": str(tmp_path / "none.json")}})
