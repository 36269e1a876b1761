"""The recording of trees covers every strategy and detects different trees."""

import json

from scripts.record_trees import PROBLEMS, SEARCHES, as_text, differing, recorded
from search.strategies.catalog import STRATEGIES


def test_every_strategy_is_recorded() -> None:
    assert {search["strategy"] for search in SEARCHES.values()} == STRATEGIES.keys()
    assert len(SEARCHES) * PROBLEMS == 640


async def test_the_same_code_gives_the_same_file_and_other_searches_differ() -> None:
    searches = {"a": SEARCHES["beam_search"], "b": SEARCHES["mcts, rollouts and logprobs"]}
    first = await recorded(searches, problems=[1, 2])
    assert as_text(await recorded(searches, problems=[1, 2])) == as_text(first)
    assert differing(first, json.loads(as_text(first))) == []
    swapped = await recorded({"a": searches["b"]}, problems=[2, 3])
    assert differing(first, swapped) == ["a / 1", "a / 2", "b / 1", "b / 2", "a / 3"]
