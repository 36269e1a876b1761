"""Rewards by a backend are those of the same family's engine, and a reply that is none is an error of the scorer."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from rude_server import Behaviour, Request, RudeServer, Write, good, head, replies

from deployments.backends import scorer as module
from deployments.backends.prm_settings import UrlPrmSettings, parse_any_prm
from deployments.backends.scorer import UrlScorer, _reward
from deployments.backends.verdicts import verdict_of
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.heads import Head
from deployments.engines.rewards.step_head import StepHead, StepHeadSettings
from deployments.engines.rewards.token_class import TokenClassSettings
from deployments.engines.tokenizers import load_tokenizer
from search.errors import ScorerError, ScorerRefused
from search.ports import Lane, ScoreItem, ScoreRequest
from search.tools.fair_slots import Requester

STEPS = ("Three and four make seven.\n\n", "Seven and two make ten.\n\n", "The answer is ten.")
ITEMS = (ScoreItem(STEPS, unscored=3), ScoreItem(STEPS[:2]), ScoreItem(STEPS[1:], unscored=1, ended=True))
REQUEST = ScoreRequest("s1", "What is 3 + 4 + 2?", ITEMS, 30.0)
POOLING = {"model": "prm", "format": {"family": "step_head"}}
JUDGE = {"model": "judge", "endpoint": "chat", "format": {"family": "generative", "model": "any", "samples": 2}}
CUE = "Is the solution correct?"


def answers(reply: Callable[[dict[str, Any]], Any]) -> Behaviour:
    async def behave(write: Write, request: Request) -> None:
        await write(head() + json.dumps(reply(json.loads(request.body))).encode())

    return behave


@asynccontextmanager
async def scorer_of(server: RudeServer, **given: Any) -> AsyncIterator[UrlScorer]:
    scorer = UrlScorer(UrlPrmSettings(url=server.url, **given))
    await scorer.start()
    try:
        yield scorer
        assert await scorer.check_integrity() == []
    finally:
        await scorer.close()


def row_of(token: int, place: int) -> list[float]:
    """What the head of the fake model says at a token."""
    return [math.sin(token + place), 3 * math.cos(token * place)]


def pooled(body: dict[str, Any], of_tags: set[int] | None = None) -> dict[str, Any]:
    assert (body["task"], body["use_activation"]) == ("token_classify", False)
    paths = [
        [row_of(token, place) for place, token in enumerate(ids) if of_tags is None or token in of_tags]
        for ids in body["input"]
    ]
    data = [{"index": index, "data": rows} for index, rows in enumerate(paths)]
    return {"data": data[::-1], "usage": {"prompt_tokens": sum(map(len, body["input"]))}}


def rewards_of_an_engine(family: Head, request: ScoreRequest) -> list[list[float]]:
    """As `Head.rewards` reads them from an engine's output."""
    found = []
    for item in request.items:
        token_ids, tags = family.encode(request.question, item.steps)
        rows = torch.tensor([row_of(token_ids[tag], tag) for tag in tags[-item.unscored :]], dtype=torch.float64)
        found.append(family.rewards_of(rows).tolist())
    return found


@pytest.mark.parametrize("calls", ["one", "several"])
@pytest.mark.parametrize("rows", ["of all tokens", "of the tags"])
async def test_rows_of_a_head_give_the_rewards_of_an_engine(
    rows: str, calls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = StepHead(StepHeadSettings(), load_tokenizer(StepHeadSettings()))
    [tag] = {family.step_ids(step)[-1] for step in STEPS}
    if calls == "several":
        monkeypatch.setattr(module, "CALL_TOKENS", 1)
    server = RudeServer(answers(lambda body: pooled(body, None if rows == "of all tokens" else {tag})))
    async with server, scorer_of(server, **POOLING) as scorer:
        scored = await scorer.score(REQUEST)
    assert len(server.requests) == (1 if calls == "one" else 3)
    expected = rewards_of_an_engine(family, REQUEST)
    assert [*map(len, scored)] == [3, 1, 1]
    assert [*scored] == [pytest.approx(row, abs=1e-12) for row in expected]
    assert scored.cost.prompt_tokens == sum(len(family.encode(REQUEST.question, item.steps)[0]) for item in ITEMS)


@pytest.mark.parametrize(
    "given", [POOLING, {"model": "s", "endpoint": "score"}, JUDGE], ids=["pooling", "score", "chat"]
)
async def test_calls_are_made_in_the_turns_of_their_search(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RudeServer(good) as server, scorer_of(server, **given) as scorer:
        made = set[Any]()

        async def noted(path: str, json: dict[str, Any], **options: Any) -> Any:
            made.add(options["requester"])
            raise ScorerError("enough")

        monkeypatch.setattr(scorer._pool, "post", noted)
        with pytest.raises(ScorerError):
            await scorer.score(REQUEST._replace(cache_salt="key", lane=Lane.FLEX_DEMAND))
    assert made == {Requester("key", "s1", flex=True)}


@settings(max_examples=50)
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=4))
def test_a_reward_is_that_of_the_head_in_torch(row: Sequence[float]) -> None:
    class OfAnyClasses(StepHead):
        classes = len(row)

    reward = OfAnyClasses.rewards_of(OfAnyClasses.__new__(OfAnyClasses), torch.tensor([row], dtype=torch.float64))
    assert _reward(row) == pytest.approx(float(reward), abs=1e-12)


async def test_scores_of_texts_are_rewards_of_the_path_up_to_each_step() -> None:
    def score(body: dict[str, Any]) -> dict[str, Any]:
        data = [{"index": index, "score": len(text) / 1000} for index, text in enumerate(body["text_2"])]
        return {"data": data, "usage": {"prompt_tokens": 77, "completion_tokens": 0}}

    async with RudeServer(answers(score)) as server, scorer_of(server, model="rm", endpoint="score") as scorer:
        scored = await scorer.score(REQUEST._replace(cache_salt="salt"))
    [request] = server.requests
    body = json.loads(request.body)
    assert (request.target, body["model"], body["text_1"], body["cache_salt"]) == (
        "/score",
        "rm",
        REQUEST.question,
        "salt",
    )
    texts = [["".join(STEPS[:end]) for end in (1, 2, 3)], ["".join(STEPS[:2])], ["".join(STEPS[1:])]]
    assert body["text_2"] == [text for path in texts for text in path]
    assert scored == [[len(text) / 1000 for text in path] for path in texts]
    assert scored.cost.prompt_tokens == 77


def critique(text: str, yes: float | None, finish: str = "stop") -> dict[str, Any]:
    """A reply of a judge that ends with a verdict behind ``text``."""
    tokens: list[dict[str, Any]] = [{"token": part, "top_logprobs": []} for part in (text, f"{CUE[:-1]}", "? ", "**")]
    if yes is not None:
        likely = [
            {"token": " Yes", "logprob": math.log(yes * 0.8)},
            {"token": "no", "logprob": math.log(0.8 - 0.8 * yes)},
        ]
        tokens.append({"token": "Yes" if yes > 0.5 else "No", "top_logprobs": likely})
    choice = {
        "message": {"content": "".join(each["token"] for each in tokens)},
        "logprobs": {"content": tokens},
        "finish_reason": finish,
    }
    return {"choices": [choice], "usage": {"prompt_tokens": 50, "completion_tokens": 20}}


async def test_a_judges_rewards_are_the_mean_verdicts_of_its_critiques() -> None:
    def verdict(body: dict[str, Any]) -> float | None:
        told = body["messages"][-1]["content"]
        return None if "answer is ten" in told else (1 + body["seed"] % 7) / 8

    def judge(body: dict[str, Any]) -> dict[str, Any]:
        return critique("Let us see.", verdict(body), "length" if verdict(body) is None else "stop")

    async with RudeServer(answers(judge)) as server, scorer_of(server, **JUDGE) as scorer:
        scored = await scorer.score(REQUEST)
        again = await scorer.score(REQUEST)
    bodies = [json.loads(request.body) for request in server.requests]
    assert len(bodies) == 16  # four different paths, two critiques each, twice
    assert len({body["seed"] for body in bodies}) == 8
    [first, second, last], same_as_second, of_other_steps = scored
    for reward, step in ((first, STEPS[0]), (second, STEPS[1])):
        of_step = [body for body in bodies if body["messages"][-1]["content"].count(step.strip()) and verdict(body)]
        only = [body for body in of_step if (STEPS[1].strip() in body["messages"][-1]["content"]) == (step == STEPS[1])]
        assert reward == pytest.approx(fmean(verdict(body) or 0 for body in only))
    assert same_as_second == [second]
    assert [last, *of_other_steps] == [0.5, 0.5]
    assert scored.unsure == {0, 2}
    assert again == scored
    cost = scored.cost
    assert (cost.prompt_tokens, cost.generated_tokens, cost.critiques, cost.cut_critiques) == (400, 160, 8, 4)


async def test_critiques_that_finish_count_whatever_becomes_of_the_others() -> None:
    fine = answers(lambda body: critique("", 0.75))
    async with RudeServer(replies(400), fine) as server, scorer_of(server, **JUDGE) as scorer:
        scored = await scorer.score(REQUEST._replace(items=(ScoreItem(STEPS[:1]),)))
    assert scored == [[pytest.approx(0.75)]]
    async with RudeServer(replies(400)) as server, scorer_of(server, **JUDGE) as scorer:
        with pytest.raises(ScorerRefused, match="400"):
            await scorer.score(REQUEST)


LIKELY = {
    "content": [{"token": f"so {CUE}"}, {"token": " Maybe", "top_logprobs": [{"token": " Maybe", "logprob": -0.1}]}]
}


@pytest.mark.parametrize(
    ("text", "logprobs", "reward"),
    [
        (f"Fine. {CUE} Yes", None, 1.0),
        (f"{CUE} Yes, I said. {CUE} **No**.", None, 0.0),
        (f"{CUE} Not at all", None, None),
        (f"{CUE} Maybe", LIKELY, None),
        (f"{CUE} yes", {"content": "none"}, 1.0),
        ("Yes", None, None),
        (CUE, None, None),
    ],
)
def test_a_verdict_without_probabilities_is_the_label_behind_the_last_cue(
    text: str, logprobs: Any, reward: float | None
) -> None:
    assert verdict_of(text, logprobs, CUE, (" Yes", " No")) == reward


@pytest.mark.parametrize(
    ("settings", "reply", "told"),
    [
        (POOLING, {}, "does not have data of 3 paths"),
        (POOLING, {"data": [{"index": 0}] * 3}, "not numbered"),
        (POOLING, {"data": [{"index": index, "data": [[0.1, 0.2]] * 4} for index in range(3)]}, "4 rows for"),
        (POOLING, {"data": [{"index": index, "data": None} for index in range(3)]}, "no rows for"),
        (POOLING, {"data": [{"data": [[0.1]] * (3, 2, 2)[index]} for index in range(3)]}, "does not have 2 numbers"),
        ({"model": "rm", "endpoint": "score"}, {"data": [{"score": 1.5}] * 5}, "not a number in"),
        ({"model": "rm", "endpoint": "score"}, {"data": [{"score": "high"}] * 5}, "not a number in"),
        (JUDGE, {"choices": []}, "no text"),
    ],
)
async def test_a_reply_without_rewards_is_an_error_of_the_scorer(settings: Any, reply: Any, told: str) -> None:
    async with RudeServer(replies(200, reply)) as server, scorer_of(server, **settings) as scorer:
        with pytest.raises(ScorerError, match=told):
            await scorer.score(REQUEST)


async def test_a_scorer_starts_with_a_model_of_the_server_and_says_why_it_does_not() -> None:
    models = replies(200, {"data": [{"id": "its-own"}]})
    async with RudeServer(models, good) as server:
        scorer = UrlScorer(UrlPrmSettings(url=server.url, endpoint="score"))
        await scorer.start()
        assert await scorer.canary() >= 0
        with pytest.raises(ScorerError):
            await scorer.score(REQUEST)
        await scorer.close()
    assert [request.target for request in server.requests] == ["/v1/models", "/v1/models", "/score"]
    assert json.loads(server.requests[-1].body)["model"] == "its-own"
    for reply, told in (
        (replies(401), "wants a key"),
        (replies(200, {"data": []}), "prm.model: the server names none"),
    ):
        async with RudeServer(reply) as server:
            with pytest.raises(EngineStartError, match=told):
                await UrlScorer(UrlPrmSettings(url=server.url, endpoint="score")).start()


async def test_cancelling_a_call_ends_its_requests() -> None:
    async def hang(write: Write, request: Request) -> None:
        await asyncio.Event().wait()

    async with RudeServer(hang) as server, scorer_of(server, **JUDGE) as scorer:
        scoring = asyncio.create_task(scorer.score(REQUEST))
        while len(server.requests) < 8:
            await asyncio.sleep(0.01)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        for request in server.requests:
            async with asyncio.timeout(10):
                await request.hung_up.wait()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "needs a format whose family reads"),
        ({"format": {"family": "outcome_of"}}, "unknown family"),
        ({"format": {"family": "ensemble_head", "model": "m"}}, "needs a format whose family reads"),
        ({"endpoint": "score", "format": {"family": "step_head"}}, "no effect"),
        ({"endpoint": "chat", "format": {"family": "step_head"}}, "needs a format of a generative family"),
        ({"endpoint": "chat", "format": {"family": "think_prm", "model": "m"}}, "whose template has a cue"),
    ],
)
def test_a_format_that_the_endpoint_cannot_send_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        parse_any_prm({"url": "http://one", **given})


def test_settings_with_a_url_are_those_of_a_backend() -> None:
    parsed = parse_any_prm({"urls": ["http://one"], "format": {"family": "token_class", "model": "m"}})
    assert isinstance(parsed, UrlPrmSettings)
    assert isinstance(parsed.format, TokenClassSettings)
    assert parsed.engines == {}
    assert isinstance(parse_any_prm({}), StepHeadSettings)
