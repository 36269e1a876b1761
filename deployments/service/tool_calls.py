"""The tool calls in what a model wrote, read by vLLM's parser in a worker process."""

import asyncio
import hashlib
import json
import logging
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from search.answers.equivalence import WAIT_S, Grouping
from search.answers.json_answer import json_answer
from search.answers.thoughts import parts
from search.answers.tool_calls import ToolCall, calls_answer
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.tools.worker_process import WorkerLost, WorkerProcess
from search.tree import Node

logger = logging.getLogger(__name__)
WORKER_SCRIPT = Path(__file__).parents[1] / "engines" / "tool_call_worker.py"
STARTUP_S = 300.0
"""Timeout of the worker's start, wall clock: it imports vLLM."""
REPLY_S = 10.0
"""Timeout of reading one text, wall clock. Then the text counts as one without calls."""


class ToolCallsUnread(RuntimeError):
    """Calls cannot be read: the parser does not suit the tokenizer, or its process cannot be started."""


class Said(NamedTuple):
    """What a model answered."""

    content: str
    """The text behind the thinking, without the calls."""
    calls: tuple[ToolCall, ...] = ()


class ToolCallParser:
    """Reads the calls in texts, one text at a time, in a process that starts at the first request with tools."""

    def __init__(self, generator: str, parser: str, script: Path = WORKER_SCRIPT) -> None:
        """``generator``: the generator's settings, as JSON. ``parser``: name of vLLM's parser."""
        greeting = json.dumps({"path": sys.path, "generator": generator, "parser": parser})
        self._worker = WorkerProcess("tool call parser", script, STARTUP_S, greeting.encode() + b"\n")
        # One thread is the queue to the one worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tool-calls")
        self._fault = ""
        """Why the parser does not suit the tokenizer."""

    def start(self) -> None:
        """Begins to start the process, so that it is ready when the first text is written."""
        self._thread.submit(self._start)

    async def __call__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Said:
        """Returns what a text without thoughts says.

        Raises:
            ToolCallsUnread: there is no process that could read it.
        """
        line = json.dumps([text, tools]).encode() + b"\n"
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, text, line)

    def close(self) -> None:
        """Ends the process, busy or not."""
        self._worker.kill()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._worker.close()

    def _start(self) -> None:
        """Raises ToolCallsUnread."""
        try:
            told = b"" if self._fault else self._worker.start()
        except WorkerLost as error:
            raise ToolCallsUnread(str(error)) from error
        if told:
            self._fault = json.loads(told).get("error", "")
        if self._fault:
            self._worker.close()
            raise ToolCallsUnread(self._fault)

    def _read(self, text: str, line: bytes) -> Said:
        self._start()
        try:
            content, calls = json.loads(self._worker.exchange(line, REPLY_S))
        except WorkerLost as error:
            logger.warning("an answer was not searched for tool calls: %s", error)
            return Said(text)
        return Said(content, tuple(ToolCall(*call) for call in calls))


Read = Callable[[str], Awaitable[Said]]


class CallsWanted(NamedTuple):
    """What a request says of the calls in its answers."""

    prompt: tuple[int, ...]
    context_tokens: int
    """Longest prompt and answer together, in tokens."""
    parallel: bool = True
    """Whether there may be more than one call; if not, the first counts."""
    exclude_arguments: tuple[str, ...] = ()
    """Names of arguments by which calls do not differ."""


class CallReader(ABC):
    """Reads the calls in the answers of one search."""

    def __init__(self, wanted: CallsWanted) -> None:
        self._wanted = wanted
        self._prompt = hashlib.blake2b(array("L", wanted.prompt).tobytes(), digest_size=16).digest()

    @abstractmethod
    def environment(self, shared: SearchEnvironment) -> SearchEnvironment:
        """The environment of the search. ``shared``: that of searches without tools."""

    @abstractmethod
    def said(self, outcome: SearchOutcome, node: Node) -> Said:
        """What the path to ``node`` says, one of those that answer."""

    def answered(self, outcome: SearchOutcome) -> SearchOutcome:
        """The outcome with its answers as clients read them."""
        return outcome

    def ids(self, outcome: SearchOutcome, said: Said) -> list[str]:
        """The ids of calls: the same for the same seed and prompt, and others for another prompt."""
        told = json.dumps([outcome.seed, said.calls]).encode()
        digest = hashlib.blake2b(told, digest_size=12, key=self._prompt).hexdigest()
        return [f"call_{digest}{index:02x}" for index in range(len(said.calls))]

    def _kept(self, said: Said) -> Said:
        return said if self._wanted.parallel else said._replace(calls=said.calls[:1])


class WrittenCalls(CallReader):
    """Calls that a model may write among its text.

    In the search an answer is a path's whole text, unless that is thinking alone; the reader is its matcher, for which
    equal calls are one answer.
    Other texts are grouped by the answers in them, or where these have none, as they are.
    """

    def __init__(self, wanted: CallsWanted, read: Read) -> None:
        """``read``: what a text without thoughts says."""
        super().__init__(wanted)
        self._read = read
        self._said: dict[str, Said] = {}

    def environment(self, shared: SearchEnvironment) -> SearchEnvironment:
        self._shared = shared
        return replace(shared, matcher=self, extract_answer=_with_content, context_tokens=self._wanted.context_tokens)

    def said(self, outcome: SearchOutcome, node: Node) -> Said:
        return self._said.get(outcome.tree.answer_of(node) or "", Said(""))

    async def grouping(self, answers: Sequence[str], wait_s: float = WAIT_S) -> Grouping:
        """See `AnswerMatcher.grouping`. Texts that are not read in time have no calls."""
        clock = asyncio.get_running_loop().time
        deadline, unread = clock() + wait_s, 0
        alike: dict[Said | str, list[int]] = {}
        others: dict[int, str] = {}
        for index, text in enumerate(answers):
            if (said := self._said.get(text)) is None:
                content = text[parts(text).start :]
                try:
                    async with asyncio.timeout_at(deadline):
                        said = self._kept(await self._read(content))
                except TimeoutError:
                    said, unread = Said(content), unread + 1
                self._said[text] = said
            answer = self._answer(text)
            if answer is None or said.calls:
                alike.setdefault(said if answer is None else answer, []).append(index)
            else:
                others[index] = answer
        indices = list(others)
        read = await self._shared.matcher.grouping(list(others.values()), max(0.0, deadline - clock()))
        groups = [*alike.values(), *([indices[member] for member in group] for group in read.groups)]
        return Grouping(sorted(groups), read.unread + unread)

    def answered(self, outcome: SearchOutcome) -> SearchOutcome:
        """The outcome with answers in place of whole texts: calls in canonical form, the answer in a text, or none."""
        selection = outcome.selection
        groups = tuple(group._replace(answer=self._answer(group.answer) or "") for group in selection.groups)
        answer = None if selection.answer is None else self._answer(selection.answer)
        return replace(outcome, selection=selection._replace(answer=answer, groups=groups))

    def _answer(self, text: str) -> str | None:
        said = self._said[text]
        if said.calls:
            return calls_answer(said.calls, self._wanted.exclude_arguments)
        return self._shared.extract_answer(said.content)


def _with_content(text: str) -> str | None:
    return None if text and parts(text).start == len(text) else text


class ForcedCalls(CallReader):
    """Calls to which a JSON schema holds the answer: its whole text is JSON.

    As vLLM writes it: the arguments of the one function that must be called, or a list of calls, each with ``name`` and
    ``parameters``.
    """

    def __init__(self, wanted: CallsWanted, function: str | None = None) -> None:
        """``function``: the one that must be called; None: any of them."""
        super().__init__(wanted)
        self._function = function

    def environment(self, shared: SearchEnvironment) -> SearchEnvironment:
        def answer(text: str) -> str | None:
            calls = self._calls(text)
            return calls_answer(calls, self._wanted.exclude_arguments) if calls else None

        return replace(shared, json_answer=answer, context_tokens=self._wanted.context_tokens)

    def said(self, outcome: SearchOutcome, node: Node) -> Said:
        text = outcome.tree.content_of(node)
        calls = self._calls(text)
        return self._kept(Said("", calls)) if calls else Said(text)

    def _calls(self, text: str) -> tuple[ToolCall, ...]:
        """The calls in a text; none in one that a limit has cut off."""
        if json_answer(text) is None:
            return ()
        if self._function is not None:
            return (ToolCall(self._function, text.strip()),)
        return tuple(
            ToolCall(call["name"], json.dumps(call["parameters"], ensure_ascii=False)) for call in json.loads(text)
        )
