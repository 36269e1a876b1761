"""The prompts with which a served model reads solutions."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import httpx
import pytest
from http_world import STEP_TOKENS, Letters, World, chat

from cluster.evaluation.loop import Plan
from cluster.evaluation.problem_files import EvalProblem
from cluster.evaluation.reader_check import ReadingPlan, ReadProblem, read_all
from deployments.admission.keys import key_record, store_owner
from deployments.backends.messages import MessageEncoder
from deployments.service.contexts import Chat, ContextPrompts
from search.answers.equivalence import AnswerMatcher
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.templates import TEMPLATES, Template, composed
from search.tree import Node, Reading, SearchTree

OWN = Template(prompt="{question} {candidates} {note}", candidate="[{text}]", separator="")
COMPOSE = ContextPrompts(Letters(), {**TEMPLATES, "fuse": OWN})
CHAT = Chat([{"role": "system", "content": "Brief."}, {"role": "user", "content": "Why?"}])


def text_of(chat: Chat, template: str, *shown: str) -> str:
    return "".join(map(chr, COMPOSE(chat, template, shown, "").token_ids))


def test_the_prompt_is_that_of_the_chat_with_the_template_for_the_question() -> None:
    assert text_of(CHAT, "fuse", "a", "b") == "<system>Brief.<user>Why? [a][b] "
    thinking = CHAT._replace(template_kwargs={"enable_thinking": False})
    assert text_of(thinking, "fuse", "a") == "<system>Brief.<user>Why? [a] <enable_thinking=False>"
    tool = {"type": "function", "function": {"name": "f"}}
    with_tools = Letters().encode_chat(composed(CHAT.messages, OWN, ["a"]), tools=[tool])
    assert text_of(CHAT._replace(tools=[tool]), "fuse", "a") == "".join(map(chr, with_tools))


def test_a_backend_gets_the_messages() -> None:
    prompt = ContextPrompts(MessageEncoder(thinks=False), {"fuse": OWN})(CHAT, "fuse", ["a"], "")
    assert json.loads(prompt.messages) == [*CHAT.messages[:1], {"role": "user", "content": "Why? [a] "}]
    assert (prompt.token_ids, prompt.size > 0) == ((), True)


def test_an_unknown_template_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="no template 'debate'; there are: select, fuse, refine, critique"):
        text_of(CHAT, "debate", "a")


class Rereads(Strategy):
    """Three solutions, then one that the model writes when it has read them."""

    stop_condition: ClassVar[StopCondition] = StopCondition.SOLUTION
    needs_rewards: ClassVar[bool] = False
    name: Literal["rereads"] = "rereads"

    @property
    def starts_contexts(self) -> bool:
        return True

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if tree.in_flight or tree.contexts:
            return []
        ends = tuple(tree.terminals)
        return [Expansion.reading(Reading(ends, "fuse"), 1)] if ends else [Expansion(tree.root, 3)]

    def candidates(self, tree: SearchTree) -> list[Node]:
        return [node for node in tree.terminals if node.context is not None]


TEXTS = ("one " * 8 + ".", "two " * 8 + ".", "three.")


async def reply_of(matcher: AnswerMatcher, context: int, **fields: Any) -> tuple[World, httpx.Response]:
    world = World(
        matcher,
        strategies=["test_context_prompts:Rereads"],
        templates={"fuse": OWN.model_dump()},
        prompt={"system": "Brief."},
        max_model_len=context,
    )
    world.generator.texts = TEXTS
    async with world.client as client:
        body = chat(search={"strategy": "rereads", "max_step_tokens": 8, "max_path_tokens": 8}, **fields)
        return world, await client.post("/v1/chat/completions", json=body)


async def test_a_search_shows_its_solutions_in_the_operators_template(matcher: AnswerMatcher) -> None:
    world, reply = await reply_of(matcher, 512)
    first, read = dict.fromkeys(world.generator.prompts)
    assert first == "<system>Brief.<user>6*7?"
    assert read == f"<system>Brief.<user>6*7? [{TEXTS[0]}][{TEXTS[1]}][{TEXTS[2]}] "
    search = reply.json()["search"]
    assert search["contexts"] == 1
    assert search["context_prompt_tokens"] == len(read)
    assert not any("were not read" in note for note in search["notes"])


async def test_solutions_that_do_not_fit_are_not_read_and_the_reply_says_so(matcher: AnswerMatcher) -> None:
    shown = f"<system>Brief.<user>6*7? [{TEXTS[0]}][{TEXTS[1]}] "
    world, reply = await reply_of(matcher, len(shown) + 8)
    assert world.generator.prompts[-1] == shown
    note = "solutions that did not fit into the prompts that show them, and were not read: 1"
    assert note in reply.json()["search"]["notes"]


async def test_readers_that_named_no_solution_are_told(matcher: AnswerMatcher) -> None:
    asks = {"prompt": "{question} {candidates} {note}Best:", "candidate": "{number} {text}", "choice": "Best:"}
    world = World(matcher, templates={"select": asks}, max_model_len=512)
    world.generator.texts = TEXTS
    search = {"strategy": "select", "n": 4, "contested": 1.0, "max_step_tokens": 8, "max_path_tokens": 8}
    async with world.client as client:
        told = (await client.post("/v1/chat/completions", json=chat(search=search))).json()["search"]
    assert [each["chosen"] for each in told["readers"]] == [None] * 4
    assert "readers that named no solution they were shown: 4 of 4" in told["notes"]


async def test_an_answer_that_is_begun_cannot_be_read_and_written_again(matcher: AnswerMatcher) -> None:
    messages = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "It is"}]
    _, reply = await reply_of(matcher, 512, messages=messages, continue_final_message=True)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "messages")
    assert "strategy rereads cannot continue an answer that is begun" in error["message"]


async def test_readers_are_measured_beside_the_vote_over_the_same_solutions(matcher: AnswerMatcher) -> None:
    """As `banyan check-select` does, with the replies of the service."""
    world = World(matcher, keys=["a-key-of-twenty-characters"], max_model_len=8192)
    world.generator.texts = (r"\boxed{41}", r"\boxed{42}", r"\boxed{42}")
    problems = [EvalProblem("p", "6*7?", "42", None)]
    found: list[ReadProblem | None] = []
    async with world.client_of(store_owner(key_record("a-key-of-twenty-characters"))) as client:
        reading = ReadingPlan("select:readers=4", Plan(n=3))
        await read_all(client.ask, problems, reading, lambda read, error: found.append(read))
    [read] = found
    assert read is not None
    # No reader states a number, so all abstain, and the vote stands.
    assert (read.share, read.vote, read.read, read.in_pool) == (pytest.approx(2 / 3), True, True, True)
    assert (read.solution_tokens, read.written_tokens) == (3 * STEP_TOKENS, 4 * STEP_TOKENS)
    shown = [prompt for prompt in world.generator.prompts if "Judgment" in prompt]
    assert read.prompt_tokens == sum(map(len, dict.fromkeys(shown)))
