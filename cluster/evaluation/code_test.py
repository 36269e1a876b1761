"""Tests that grade programs: run with the program in a Python process of their own, after the search and apart from it.

The process has no environment, and limits on time, memory, files and processes; sockets, other programs and files
outside of the standard library are refused. That stops programs that models write by mistake. It is no jail: grade what
an attacker may have written in a container.
"""

import ast
import asyncio
import builtins
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from search.answers.checks import parsed_python
from search.answers.equivalence import AnswerMatcher

SCRIPT = Path(__file__).with_name("code_test_process.py")
SECONDS = 10.0
"""Time limit of a test, wall clock and CPU."""
MEMORY_BYTES = 1 << 30
GRADING_FIELDS = frozenset({"test", "test_list", "challenge_test_list", "canonical_solution", "code", "entry_point"})
"""Fields of the records of HumanEval and MBPP that a search must not see."""


class CodeTest(NamedTuple):
    """The test of a record."""

    before: str
    """Runs before the program: the imports and helpers that the question gives."""
    after: str
    """Runs after it, and fails if the program is wrong."""

    async def passes(self, program: str, slots: asyncio.Semaphore) -> bool:
        """Whether the test passes. ``slots``: as `grading_slots` makes them."""
        proof = secrets.token_hex(16)
        given = {"sources": [self.before, program, self.after], "proof": proof}
        limits = {"seconds": int(SECONDS) + 1, "memory": MEMORY_BYTES}
        async with slots:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(SCRIPT)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(SECONDS):
                    written, _ = await process.communicate(json.dumps(given | limits).encode())
            except TimeoutError:
                return False
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return written == proof.encode()


class CodeMatcher:
    """Takes the place of an `AnswerMatcher` for answers that are programs: right is what passes the test."""

    def __init__(self, test: CodeTest, slots: asyncio.Semaphore) -> None:
        """``slots``: as `grading_slots` makes them."""
        self._test = test
        self._slots = slots
        self._passed: dict[str, bool] = {}

    async def same(self, expected: str, answer: str) -> bool:
        """Whether ``answer`` passes the test."""
        if answer not in self._passed:
            self._passed[answer] = await self._test.passes(answer, self._slots)
        return self._passed[answer]

    async def group(self, answers: Sequence[str]) -> list[list[int]]:
        """Indices of ``answers``, grouped by their text."""
        groups: dict[str, list[int]] = {}
        for index, answer in enumerate(answers):
            groups.setdefault(answer, []).append(index)
        return list(groups.values())


Grader = AnswerMatcher | CodeMatcher


def grading_slots() -> asyncio.Semaphore:
    """Bounds the number of tests that run at a time: one for each core."""
    return asyncio.Semaphore(os.cpu_count() or 1)


def code_test(fields: Mapping[str, Any]) -> CodeTest | None:
    """The test of a record in the form of HumanEval (``prompt``, ``test``, ``entry_point``) or of MBPP (``test_list``,
    with ``test_imports`` or ``test_setup_code``); None of another record."""
    prompt, test, entry_point = (fields.get(name) for name in ("prompt", "test", "entry_point"))
    if isinstance(prompt, str) and isinstance(test, str) and isinstance(entry_point, str):
        return CodeTest(prompt, f"{test}\n\ncheck({entry_point})\n")
    tests = _texts(fields.get("test_list"))
    if tests:
        setup = fields.get("test_setup_code")
        before = [*_texts(fields.get("test_imports")), *([setup] if isinstance(setup, str) else [])]
        return CodeTest("\n".join(before), "\n".join(tests))
    return None


def code_question(fields: Mapping[str, Any]) -> str | None:
    """The question of a record with a `code_test`. That of MBPP names the function, which its text leaves open."""
    question = fields.get("prompt") or fields.get("text")
    if not isinstance(question, str):
        return None
    tests = _texts(fields.get("test_list"))
    name = _called(tests[0]) if tests else None
    return f"{question}\nThe name of the function is `{name}`." if name else question


def _called(test: str) -> str | None:
    """The function that an assertion calls first, as it is read."""
    try:
        calls = [node for node in ast.walk(parsed_python(test)) if isinstance(node, ast.Call)]
    except ValueError:
        return None
    names = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
    return next((name for name in names if not hasattr(builtins, name)), None)


def _texts(given: Any) -> list[str]:
    return [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
