"""Calls that a model writes among its text, as a vote reads them."""

import asyncio
from typing import Any

from deployments.service.tool_calls import CallsWanted, Said, WrittenCalls
from search.answers.equivalence import AnswerMatcher
from search.answers.tool_calls import ToolCall
from search.run.environment import SearchEnvironment


async def test_texts_that_are_not_read_in_time_are_compared_as_they_are() -> None:
    """Another client's texts may keep the process that reads them."""
    read: list[str] = []

    async def slow(text: str) -> Said:
        read.append(text)
        if text == "no end":
            await asyncio.Event().wait()
        return Said("", (ToolCall("f", "{}"),))

    calls = WrittenCalls(CallsWanted((1, 2), 100), slow)
    matcher = AnswerMatcher()
    shared: Any = SearchEnvironment(None, None, 100, matcher)  # type: ignore[arg-type]
    voting = calls.environment(shared).matcher
    assert (await voting.grouping(["one", "two"])).groups == [[0, 1]]
    grouping = await voting.grouping(["no end", "one", "no end", "two"], wait_s=0.2)
    assert (grouping.groups, grouping.unread) == ([[0, 2], [1, 3]], 1)
    assert (await voting.grouping(["no end", "one"])).groups == [[0], [1]], "what was not read is not read again"
    assert read == ["one", "two", "no end"]
    matcher.close()
