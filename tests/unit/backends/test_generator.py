"""A search over a backend: the real client and a server of OpenAI's API, over a model without an engine."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from deployments.backend import BackendReplica
from deployments.backends.capabilities import Capabilities, Continuing, find_capabilities
from deployments.backends.generator import UrlGenerator
from deployments.backends.pool import Pool
from deployments.backends.settings import BackendSettings, UrlGeneratorSettings
from deployments.config import AppConfig
from deployments.startup.backends import asked_backend
from deployments.telemetry import logs
from search.answers.equivalence import AnswerMatcher
from search.errors import GeneratorError, GeneratorRefused, SchemaRefused
from search.ports import Branch, ExpandItem, ExpandRequest, Generator, Lane, Sampling, StopCondition, ThoughtRequest
from search.prompt import Prompt
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.snapshot import restore_tree, save_tree, tree_as_json
from search.tools.fair_slots import Requester
from search.tree import StepEnd
from tests.unit.backends.rude_server import RudeServer, streams
from tests.unit.backends.text_model import CONTEXT, DELIMITER, MODEL, PROMPT_TOKENS, LocalModel, TextModel
from tests.unit.search.search_fakes import FakeScorer

CHAT = json.dumps([{"role": "user", "content": "How much is it?"}])
PROMPT = Prompt(messages=CHAT, counted=7)
BEGUN = json.dumps([*json.loads(CHAT), {"role": "assistant", "content": "It is"}])
ALL = Capabilities(
    MODEL,
    2048,
    Continuing.ASKED,
    token_ids=True,
    stops=True,
    seeds=True,
    logprobs=True,
    schemas=True,
    n=True,
    usage=True,
    sampling=True,
    cancels=True,
)
BEAM = {"strategy": "beam_search", "n": 8, "m": 2, "seed": 3, "max_step_tokens": 12, "max_depth": 6}


async def searched(
    generator: Generator, settings: dict[str, Any], prompt: Prompt = PROMPT, **options: Any
) -> SearchOutcome:
    matcher = AnswerMatcher()
    try:
        environment = SearchEnvironment(generator, FakeScorer(), 2048, matcher)
        return await run_search("?", prompt, parse_search(settings), environment, search_id="s", **options)
    finally:
        matcher.close()


def asked(stop_condition: StopCondition, branches: int = 1, **options: Any) -> ExpandRequest:
    item = ExpandItem((), (), tuple(Branch(index, index + 1, 64) for index in range(branches)), messages=CHAT)
    item = item._replace(**{name: options.pop(name) for name in ("text", "messages", "prefix") if name in options})
    return ExpandRequest("s", (item,), Sampling(), stop_condition, Lane.DEMAND, 20.0, **options)


async def children(generator: UrlGenerator, request: ExpandRequest) -> list[Any]:
    return [child async for group in generator.expand(request) for child in group.children]


@pytest.mark.parametrize(
    ("server", "can"),
    [
        (TextModel(), ALL),
        (TextModel(continues="always", stops=False), replace(ALL, continues=Continuing.ALWAYS, stops=False)),
    ],
    ids=["stops", "cut"],
)
@pytest.mark.parametrize("own", [BEAM, {**BEAM, "strategy": "self_consistency", "m": None}], ids=["steps", "whole"])
async def test_the_tree_is_the_one_of_a_generator_in_this_process(
    server: TextModel, can: Capabilities, own: dict[str, Any]
) -> None:
    settings = {name: value for name, value in own.items() if value is not None}
    local = await searched(LocalModel(), settings)
    async with server.served() as pool:
        outcome = await searched(UrlGenerator(pool, can), settings)
    tree, expected = tree_as_json(outcome.tree), tree_as_json(local.tree)
    if can.stops:  # a stream that is cut has no usage
        assert outcome.cost.generated_tokens == local.cost.generated_tokens
    if own is not BEAM or not can.stops:  # a backend tells the tokens of a request, not those of each step in it
        for node in (*tree["nodes"], *expected["nodes"]):
            del node["tokens"]
    assert tree == expected
    assert outcome.selection.answer == local.selection.answer
    assert outcome.cost.prompt_tokens == 7
    assert (outcome.cost.estimated_branches > 0) == (own is BEAM and not can.stops)
    assert tree_as_json(restore_tree(save_tree(outcome.tree))) == tree_as_json(outcome.tree)


async def test_steps_behind_one_first_step_are_written_near_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with TextModel().served() as pool:
        near: dict[str, set[str]] = {}
        post = pool.post

        async def noted(path: str, json: dict[str, Any], **options: Any) -> Any:
            written = json["messages"][-1]
            first = written["content"].partition(DELIMITER)[0] if written["role"] == "assistant" else ""
            near.setdefault(first, set()).add(options["near"])
            return await post(path, json, **options)

        monkeypatch.setattr(pool, "post", noted)
        await searched(UrlGenerator(pool, ALL), {**BEAM, "merge_siblings": False})
        first_steps = near.pop("")
        assert first_steps == {f"s {index}" for index in range(8)}
        assert near
        assert all(each <= first_steps for each in near.values())
        assert sum(map(len, near.values())) <= len(first_steps)  # equal first steps may be several
        near.clear()
        await searched(UrlGenerator(pool, ALL), {"strategy": "self_consistency", "n": 4, "seed": 3})
        assert near == {"": {""}}


@pytest.mark.parametrize("name", ["post", "collect"])
@pytest.mark.parametrize("whole", [True, False])
async def test_requests_are_sent_in_the_turns_of_their_search(
    name: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    can = ALL if name == "post" else replace(ALL, cancels=False, stops=whole)
    async with TextModel(stops=can.stops).served() as pool:
        sent = set[Any]()
        send = getattr(pool, name)

        async def noted(path: str, json: dict[str, Any], **options: Any) -> Any:
            sent.add(options["requester"])
            return await send(path, json, **options)

        monkeypatch.setattr(pool, name, noted)
        request = asked(StopCondition.SOLUTION if whole else StopCondition.STEP, 2, cache_salt="key")
        assert len(await children(UrlGenerator(pool, can), request._replace(lane=Lane.FLEX_DEMAND))) == 2
    assert sent == {Requester("key", "s", flex=True)}


async def test_without_seeds_the_samples_of_a_question_are_one_request() -> None:
    server = TextModel(seeds=False)
    async with server.served() as pool:
        generator = UrlGenerator(pool, replace(ALL, seeds=False))
        written = await children(generator, asked(StopCondition.SOLUTION, 5))
    assert [body.get("n") for body in server.bodies] == [5]
    assert sorted(child.index for child in written) == [*range(5)]
    assert [child.prefix_tokens for child in written] == [7, 0, 0, 0, 0]
    tokens = sum(step.size for child in written for step in child.steps)
    assert tokens == generator.written_tokens


@pytest.mark.parametrize("cancels", [True, False], ids=["whole", "streamed"])
async def test_closing_the_call_closes_every_connection(cancels: bool) -> None:
    server = TextModel(hangs=True)
    async with server.served() as pool:
        generator = UrlGenerator(pool, replace(ALL, cancels=cancels))
        stream = generator.expand(asked(StopCondition.SOLUTION, 3))
        waiting = asyncio.ensure_future(anext(stream))
        await server.began.wait()
        while server.at_work < 3:
            await asyncio.sleep(0.005)
        waiting.cancel()
        await asyncio.wait({waiting})
        await stream.aclose()
        while server.at_work:
            await asyncio.sleep(0.005)
    assert server.aborted == 3
    assert generator.running == 0
    assert waiting.cancelled()


async def test_a_branch_that_fails_ends_the_call_behind_all_others() -> None:
    server = TextModel(refuses='"seed": 2,')
    async with server.served() as pool:
        stream = UrlGenerator(pool, ALL).expand(asked(StopCondition.SOLUTION, 4))
        arrived: list[int] = []
        while len(arrived) < 3:
            arrived += [child.index for child in (await anext(stream)).children]
        with pytest.raises(GeneratorRefused, match='no "seed": 2, here'):
            await anext(stream)
    assert sorted(arrived) == [0, 2, 3]


async def test_a_branch_that_the_context_cannot_hold_is_as_long_as_it_can() -> None:
    server = TextModel()
    async with server.served() as pool:
        generator = UrlGenerator(pool, ALL)
        request = asked(StopCondition.SOLUTION)
        [item] = request.expansions
        long = request._replace(expansions=(item._replace(branches=(Branch(0, 1, CONTEXT - 3),)),))
        for _ in range(2):
            [child] = await children(generator, long)
            assert child.steps
    limits = [body["max_tokens"] for body in server.bodies]
    assert limits == [CONTEXT - 3, 1, CONTEXT - PROMPT_TOKENS, CONTEXT - PROMPT_TOKENS]


async def test_what_a_path_took_of_the_context_is_not_taken_from_other_paths() -> None:
    server = TextModel()
    async with server.served() as pool:
        generator = UrlGenerator(pool, ALL)
        for text, limit in (("So. " * 400, CONTEXT - 3), ("", 900), ("So. " * 200, 900)):
            request = asked(StopCondition.SOLUTION, text=text)
            [item] = request.expansions
            await children(generator, request._replace(expansions=(item._replace(branches=(Branch(0, 1, limit),)),)))
    assert [body["max_tokens"] for body in server.bodies[-2:]] == [900, 900]


async def test_thinking_that_is_told_apart_is_the_beginning_of_the_first_step() -> None:
    thought = ThoughtRequest(opened=False, max_tokens=64, closes=False, solution_tokens=64)
    async with TextModel(thinks=True).served() as pool:
        generator = UrlGenerator(pool, replace(ALL, thinks=True, continues=Continuing.NO))
        [child] = await children(generator, asked(StopCondition.SOLUTION, thought=thought))
    first = child.steps[0]
    assert first.text[: first.thought.characters].strip() == "<think>\nhm 1\n</think>"
    assert 0 < first.thought.tokens < first.size
    assert first.solution
    assert "hm" not in first.solution


async def test_token_ids_of_a_step_are_those_that_the_backend_wrote() -> None:
    prefix = tuple(map(ord, "How much?"))
    async with TextModel().served() as pool:
        request = asked(StopCondition.STEP, prefix=prefix, messages="", logprobs=True)
        [child] = await children(UrlGenerator(pool, ALL), request)
        whole = asked(StopCondition.SOLUTION, 8, prefix=prefix, messages="", logprobs=True)
        solutions = await children(UrlGenerator(pool, ALL), whole)
    assert len(child.steps) == 1
    assert max(len(solution.steps) for solution in solutions) > 1
    for step in (*child.steps, *(step for solution in solutions for step in solution.steps)):
        assert "".join(map(chr, step.token_ids)) == step.text
        assert (step.counted, step.logprob) == (None, -len(step.text))
        assert step.token_logprobs == (-1.0,) * len(step.text)


async def test_a_tree_of_token_ids_goes_on_behind_the_ids_that_the_backend_wrote() -> None:
    prompt = tuple(map(ord, "How much?"))
    server, can = TextModel(continues=""), replace(ALL, continues=Continuing.NO).with_tokenizer()
    async with server.served() as pool:
        outcome = await searched(UrlGenerator(pool, can), BEAM, prompt=Prompt(prompt))
    nodes = [node for node in outcome.tree.nodes if node.step]
    assert max(node.depth for node in nodes) > 1
    assert all("".join(map(chr, node.token_ids)) == node.text for node in nodes)
    # Blank steps are asked for again behind what is blank.
    paths = {f"How much?{node.text}".rstrip("\n") for node in (outcome.tree.root, *nodes)}
    assert {"".join(map(chr, body["prompt"])).rstrip("\n") for body in server.bodies} <= paths


async def test_log_probabilities_are_those_of_each_steps_tokens() -> None:
    async with TextModel().served() as pool:
        found = await children(UrlGenerator(pool, ALL), asked(StopCondition.SOLUTION, 8, logprobs=True))
    steps = [step for child in found for step in child.steps]
    assert max(len(child.steps) for child in found) > 1
    assert all(step.logprob == -len(step.text) for step in steps)  # of each token its length


async def test_an_answer_that_was_begun_goes_on() -> None:
    server = TextModel()
    async with server.served() as pool:
        await children(UrlGenerator(pool, ALL), asked(StopCondition.STEP, messages=BEGUN, text=" so"))
    body, *_ = server.bodies
    assert body["messages"][1:] == [{"role": "assistant", "content": "It is so"}]
    assert body["continue_final_message"] is True
    assert body["stop"] == [DELIMITER]


@pytest.mark.parametrize(
    ("can", "request_of", "lacks"),
    [
        ({"continues": Continuing.NO}, {"text": "so"}, "continuing a final message"),
        ({"continues": Continuing.NO}, {"messages": BEGUN}, "continuing a final message"),
        ({"schemas": False}, {"json_schema": "{}"}, "JSON schemas"),
        ({"logprobs": False}, {"logprobs": True}, "log-probabilities"),
        ({"token_ids": False}, {"prefix": (1,)}, "prompts of token ids"),
    ],
)
async def test_what_the_backend_lacks_is_refused_before_it_is_asked(
    can: dict[str, Any], request_of: dict[str, Any], lacks: str
) -> None:
    server = TextModel()
    async with server.served() as pool:
        with pytest.raises(GeneratorRefused, match=lacks):
            await children(UrlGenerator(pool, replace(ALL, **can)), asked(StopCondition.SOLUTION, **request_of))
    assert server.bodies == []


async def test_a_schema_that_the_backend_refuses_is_told_as_such() -> None:
    async with TextModel(schemas=False).served() as pool:
        with pytest.raises(SchemaRefused, match="response_format"):
            await children(UrlGenerator(pool, ALL), asked(StopCondition.SOLUTION, json_schema='{"type": "object"}'))


async def test_the_deadline_of_a_call_is_that_of_its_requests() -> None:
    async with TextModel(hangs=True).served() as pool:
        request = asked(StopCondition.SOLUTION)._replace(deadline_s=0.2)
        with pytest.raises(GeneratorError, match="deadline"):
            await children(UrlGenerator(pool, ALL), request)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({}, {}),
        ({"continues": "always", "stops": False}, {"continues": Continuing.ALWAYS, "stops": False}),
        ({"continues": "", "seeds": False, "n": False}, {"continues": Continuing.NO, "seeds": False, "n": False}),
        ({"logprobs": False, "schemas": False, "tools": False}, {"logprobs": False, "schemas": False, "tools": False}),
        (
            {"usage": False, "sampling": False, "token_ids": False},
            {"usage": False, "sampling": False, "token_ids": False},
        ),
        ({"interrupts": True}, {"concurrent": False}),
        ({"counts": True}, {"cancels": True}),
        ({"counts": True, "ends_unheard": False}, {}),
        ({"thinks": True}, {"thinks": True, "continues": Continuing.NO, "stops": False}),
        (
            {"limit_name": "max_completion_tokens", "token_ids": False},
            {"limit_name": "max_completion_tokens", "token_ids": False},
        ),
        ({"no_top_k": -1}, {"no_top_k": -1}),
        (
            {"limit_name": "max_completion_tokens", "token_ids": False, "temperature": False, "sampling": False},
            {"limit_name": "max_completion_tokens", "token_ids": False, "temperature": False, "sampling": False}
            | {"continues": Continuing.NO, "stops": False},  # only greedy answers show them
        ),
        ({"trims": True}, {"trims": True, "continues": Continuing.NO}),
        ({"trims": True, "continues": "always"}, {"trims": True, "continues": Continuing.NO}),
    ],
    ids=lambda given: "+".join(given) or "all",
)
async def test_what_a_server_can_do_is_found(server: dict[str, Any], expected: dict[str, Any]) -> None:
    model = TextModel(**server)
    async with model.served() as pool:
        found = await find_capabilities(pool)
    assert found == replace(ALL, **({"tools": True, "cancels": False} | expected))
    assert len(model.bodies) < 24


@pytest.mark.parametrize("server", [{"no_top_k": -1}, {"temperature": False, "sampling": False}], ids="+".join)
async def test_samples_are_asked_for_as_the_server_takes_them(server: dict[str, Any]) -> None:
    model = TextModel(**server)
    async with model.served() as pool:
        generator = UrlGenerator(pool, await find_capabilities(pool))
        outcome = await searched(generator, {"strategy": "self_consistency", "n": 4, "seed": 3})
    assert len(outcome.tree.terminals) == 4
    assert model.bodies[-1].get("top_k") == server.get("no_top_k")


async def test_a_server_that_takes_few_choices_is_asked_for_one_at_a_time() -> None:
    model = TextModel(most_choices=4, seeds=False)
    async with model.served() as pool:
        generator = UrlGenerator(pool, replace(ALL, seeds=False))
        for _ in range(2):
            outcome = await searched(generator, {"strategy": "self_consistency", "n": 8})
            assert len(outcome.tree.terminals) == 8
        assert [body.get("n", 1) for body in model.bodies if body["max_tokens"] > 1] == [8] + [1] * 16
        model.refuses, asked_before = "much", len(model.bodies)
        with pytest.raises(GeneratorRefused, match="no much here"):
            await children(generator, asked(StopCondition.SOLUTION, 8))
        assert len(model.bodies) - asked_before <= 16


async def test_a_step_that_stays_blank_ends() -> None:
    """As where a chat template trims what it continues, and nobody has found out."""
    model = TextModel(trims=True)
    async with model.served() as pool:
        model.write = lambda seed, prompt, text, limit, stop=(): ([DELIMITER], "stop")  # type: ignore[method-assign]
        [child] = await children(UrlGenerator(pool, ALL), asked(StopCondition.STEP, text="So."))
    assert child.steps[0].end is StepEnd.LENGTH
    assert len(model.bodies) == 16


async def test_a_step_that_is_cut_is_written_again() -> None:
    event = {"choices": [{"index": 0, "delta": {"content": "So it"}, "finish_reason": None}]}
    ended = {"choices": [{"index": 0, "delta": {"content": " is.\n\nAnd"}, "finish_reason": None}]}
    cut, whole = streams(event, done=b""), streams(event, ended)
    async with RudeServer(cut, whole) as server:
        pool = Pool(BackendSettings(url=server.url))
        [child] = await children(UrlGenerator(pool, replace(ALL, stops=False)), asked(StopCondition.STEP))
        [status] = pool.status()
        await pool.aclose()
    assert (child.steps[0].text, child.steps[0].end) == ("So it is.\n\n", StepEnd.DELIMITER)
    assert (len(server.requests), status.answered, status.failed) == (2, 1, 1)


async def test_a_server_that_answers_one_request_at_a_time_is_sent_one_at_a_time() -> None:
    vote = {"strategy": "self_consistency", "n": 6, "seed": 3}
    rude = TextModel(interrupts=True)
    async with TextModel().served() as pool, rude.served() as of_rude:
        several = await searched(UrlGenerator(pool, replace(ALL, cancels=False)), vote)
        one = await searched(UrlGenerator(of_rude, replace(ALL, cancels=False, concurrent=False)), vote)
    assert tree_as_json(one.tree) == tree_as_json(several.tree)
    assert rude.streams == 6  # none was cut and sent again


async def test_a_model_that_the_backend_has_not_is_refused_by_name() -> None:
    async with TextModel().served() as pool:
        with pytest.raises(ValueError, match="no model 'another'; it has: text-model"):
            await find_capabilities(pool, "another")


@pytest.mark.parametrize(
    ("can", "settings", "reason"),
    [
        ({"continues": Continuing.NO}, {"strategy": "beam_search"}, "strategy: beam_search writes step by step"),
        (
            {"continues": Continuing.NO, "trims": True},
            {"strategy": "beam_search"},
            "strategy: beam_search writes step by step",
        ),
        ({"continues": Continuing.NO}, {"strategy": "self_consistency", "n": 4}, None),
        ({"continues": Continuing.NO}, {"strategy": "select", "n": 4}, None),
        ({"continues": Continuing.NO}, {"strategy": "refine", "n": 4}, None),
        ({"seeds": False}, {"strategy": "greedy", "seed": 1}, "seed: "),
        ({"logprobs": False}, {"strategy": "greedy", "logprobs": True}, "logprobs: "),
        ({"sampling": False}, {"strategy": "greedy", "top_k": 5}, "top_k: "),
    ],
)
def test_a_search_is_refused_by_the_setting_that_the_backend_cannot_do(
    can: dict[str, Any], settings: dict[str, Any], reason: str | None
) -> None:
    lacks = replace(ALL, **can).lacks(parse_search(settings))
    assert (lacks or "").startswith(reason or "")
    assert (lacks is None) == (reason is None)


def test_what_a_trimming_template_keeps_from_steps_a_tokenizer_gives() -> None:
    lacks = replace(ALL, continues=Continuing.NO, trims=True).lacks(parse_search({"strategy": "beam_search"}))
    assert "trims the message that it would continue, which generator.tokenizer avoids" in (lacks or "")


async def test_a_backend_is_asked_once_when_the_application_is_built() -> None:
    async with TextModel().served() as pool:
        [url] = [each.url for each in pool.status()]
        given = AppConfig.model_validate({"generator": {"url": url}})
        config, can = await asyncio.to_thread(asked_backend, given)
        assert can == replace(ALL, tools=True, cancels=False)
        assert (config.generator.served_name, config.search_context) == (MODEL, 2048)
        assert given.controller == config.controller
        beam = {
            "generator": {"url": url},
            "controller": {"default_search": {"strategy": "self_consistency", "top_k": 3}},
        }
        await asyncio.to_thread(asked_backend, AppConfig.model_validate(beam))
        tokens = {"generator": {"url": url, "tokenizer": "some/model"}}
        _, can = await asyncio.to_thread(asked_backend, AppConfig.model_validate(tokens))
        assert can is not None
        assert can.continues is Continuing.TOKEN_IDS
        another = AppConfig.model_validate({"generator": {"url": url, "model": "another"}})
        with pytest.raises(ValueError, match=f"generator.model: .* it has: {MODEL}"):
            await asyncio.to_thread(asked_backend, another)
    async with TextModel(sampling=False, token_ids=False).served() as pool:
        tokens["generator"]["url"] = pool.status()[0].url
        with pytest.raises(ValueError, match=r"generator\.tokenizer: .*no token ids"):
            await asyncio.to_thread(asked_backend, AppConfig.model_validate(tokens))
        beam["generator"] = {"url": pool.status()[0].url}
        with pytest.raises(ValueError, match=r"controller\.default_search\.top_k: "):
            await asyncio.to_thread(asked_backend, AppConfig.model_validate(beam))
    with pytest.raises(ValueError, match=r"generator\.url: .*unreachable"):
        await asyncio.to_thread(asked_backend, given)


async def test_the_replica_has_the_methods_of_a_generators_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "configure", lambda settings, level: None)  # the loggers are those of all tests
    server = TextModel()
    async with server.served() as pool:
        settings = UrlGeneratorSettings(url=pool.status()[0].url, served_name="m")
        replica = BackendReplica.__new__(BackendReplica)
        await replica.__init__(settings, ALL)  # type: ignore[misc]  # as Serve does
        [group] = [group async for group in replica.expand(asked(StopCondition.SOLUTION)._replace(model="m"))]
        assert [child.index for child in group.children] == [0]
        assert await replica.canary() > 0
        assert await replica.check_integrity() == []
        stats = await replica.stats()
    assert stats["written_tokens"] == sum(step.size for child in group.children for step in child.steps)
    assert [url["healthy"] for url in stats["urls"]] == [True]
    with pytest.raises(GeneratorRefused, match="serves 'm'"):
        await anext(replica.expand(asked(StopCondition.SOLUTION)._replace(model="another")))
    with pytest.raises(GeneratorError, match="unreachable"):
        await replica.canary()
    await replica._pool.aclose()
