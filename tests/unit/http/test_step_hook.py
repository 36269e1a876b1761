"""A step hook in the replies of the endpoint: its text apart from the model's, its tokens, its failures."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from http_world import World, chat

from search.answers.equivalence import AnswerMatcher
from search.errors import HookFailure
from search.snapshot import TreeView

pytestmark = pytest.mark.asyncio

NOTE = "noted\n"
SEARCH = "/v1/search"


async def note(question: str, path: Sequence[str], step: str) -> str:
    return NOTE


async def fail(question: str, path: Sequence[str], step: str) -> str:
    raise RuntimeError("10.9.8.7")


@pytest.fixture
def hooked(matcher: AnswerMatcher) -> Callable[..., World]:
    def world(function: Callable[..., Any], **settings: Any) -> World:
        path = f"{__name__}:{function.__name__}"
        return World(matcher, step_hook={"function": path, **settings})

    return world


async def post(world: World, path: str = SEARCH, **fields: Any) -> Any:
    async with world.client as client:
        reply = await client.post(path, json=chat(**fields))
    assert world.service.check_integrity() == []
    return reply


async def test_the_reply_tells_the_hooks_text_and_tokens_from_the_models(hooked: Callable[..., World]) -> None:
    reply = (await post(hooked(note))).json()
    nodes = TreeView.model_validate(reply["tree"]).nodes
    added = [node for node in nodes if node.hook]
    assert len(added) == reply["search"]["hook_calls"] > 0
    assert all(node.hook.text == NOTE and NOTE not in (node.text or "") for node in added if node.hook)
    usage, search = reply["usage"], reply["search"]
    assert search["hook_tokens"] == len(added) * len(NOTE)
    assert usage["completion_tokens"] == search["generated_tokens"] == sum(node.tokens for node in nodes)
    assert usage["prompt_tokens"] > search["hook_tokens"]
    plain = (await post(hooked(note), search={"strategy": "greedy"})).json()
    assert usage["prompt_tokens"] == plain["usage"]["prompt_tokens"] + search["hook_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert reply["choices"][0]["message"]["content"].count(NOTE) == len(search["node"]) - 1


async def test_log_probabilities_are_those_of_the_models_tokens(hooked: Callable[..., World]) -> None:
    reply = (await post(hooked(note), "/v1/chat/completions", logprobs=True)).json()
    content = reply["choices"][0]["logprobs"]["content"]
    assert len(content) > 0
    assert NOTE in reply["choices"][0]["message"]["content"]
    assert "noted" not in "".join(token["token"] for token in content)


async def test_a_stream_shows_the_text_set_apart(hooked: Callable[..., World]) -> None:
    reply = await post(hooked(note), "/v1/chat/completions", stream=True)
    assert '"hook":{"text":"noted\\n"' in reply.text
    assert "[step hook: noted]" in reply.text


async def test_whole_solutions_come_with_a_note_that_the_hook_is_not_called(hooked: Callable[..., World]) -> None:
    search = (await post(hooked(note), search={"strategy": "best_of_n", "n": 2})).json()["search"]
    assert search["unhooked_steps"] > 0
    assert "hook_calls" not in search
    [told] = search["notes"]
    assert told.startswith("steps of whole solutions, for which the step hook is not called: ")


async def test_a_failing_hook_is_told_and_its_error_is_not_quoted(hooked: Callable[..., World]) -> None:
    reply = await post(hooked(fail))
    search = reply.json()["search"]
    assert search["degraded"]
    assert search["hook_failures"] == search["hook_calls"] > 0
    assert f"steps for which the step hook failed: {search['hook_failures']}" in search["notes"]
    assert "10.9.8.7" not in reply.text


async def test_a_request_fails_if_the_hook_may_not_fail(hooked: Callable[..., World]) -> None:
    reply = await post(hooked(fail, fallback="fail"))
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "step_hook_failed"
    assert "10.9.8.7" not in reply.text
    assert HookFailure.RAISED not in reply.text


async def test_without_a_hook_no_reply_speaks_of_one(world: World) -> None:
    assert "hook" not in (await post(world)).text
