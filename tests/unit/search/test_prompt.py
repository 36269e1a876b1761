"""Prompts: as token ids, or as a chat for a generator that encodes by itself."""

import asyncio

from search import Prompt, run_search
from search.run.environment import SearchEnvironment
from search.settings import parse_search
from search.snapshot import tree_as_json
from tests.unit.search.search_fakes import PROMPT, Bench, search

BEAMS = {"strategy": "beam_search", "n": 4, "m": 2}


def test_token_ids_are_a_prompt() -> None:
    bench, plain = search(BEAMS)
    again = Bench()

    async def main() -> None:
        environment = SearchEnvironment(again.generator, again.scorer, 1000, again.matcher)
        settings = parse_search({"seed": 7} | BEAMS)
        outcome = await run_search("What is it?", Prompt(PROMPT), settings, environment, search_id="s1")
        assert (tree_as_json(outcome.tree), outcome.cost.prefix_tokens) == (
            tree_as_json(plain.tree),
            plain.cost.prefix_tokens,
        )

    asyncio.run(main())
    assert again.generator.requests[0].expansions == bench.generator.requests[0].expansions


def test_a_generator_that_encodes_by_itself_gets_the_chat_and_the_text_of_the_path() -> None:
    """Its prompt has as many tokens as was counted."""
    chat = '[{"role": "user", "content": "What is it?"}]'
    bench = Bench()

    async def main() -> None:
        environment = SearchEnvironment(bench.generator, bench.scorer, 1000, bench.matcher)
        settings = parse_search({"seed": 7} | BEAMS)
        prompt = Prompt(messages=chat, counted=5)
        outcome = await run_search("What is it?", prompt, settings, environment, search_id="s1", tree=bench.tree)
        assert outcome.cost.prompt_tokens == 5

    asyncio.run(main())
    items = [item for request in bench.generator.requests for item in request.expansions]
    assert len(items) > 4
    for item in items:
        parent = bench.tree[item.parent]
        assert (item.prefix, item.messages, item.text) == ((), chat, parent.text)
        assert item.branches[0].max_tokens <= 1000 - 5 - parent.path_tokens
