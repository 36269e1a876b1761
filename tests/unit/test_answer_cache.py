"""What the answer cache keeps, for how long, and which questions it takes for one."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deployments.config import AnswerCacheSettings, AppConfig
from deployments.service.answer_cache import (
    MAX_ENTRY_BYTES,
    MAX_QUESTION_CHARS,
    AnswerCache,
    Question,
    digest_of,
    is_complete,
)
from deployments.service.embedding import Embedder
from deployments.service.question_guard import marks_of
from search.answers.voting import AnswerGroup, AnswerSelection
from search.run.report import ContextStarted, SearchCost, SearchOutcome, StepScored, StopReason
from search.tree import ContextNode, NodeStatus, Reading, SearchTree, Step, StepEnd

HERE = f"{__name__}:"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def letters(texts: Sequence[str]) -> list[list[int]]:
    """How often each letter is in a text: questions of similar words are similar."""
    return [[text.lower().count(letter) for letter in LETTERS] for text in texts]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def cache_of(clock: Clock | None = None, **settings: Any) -> AnswerCache:
    return AnswerCache(AnswerCacheSettings(**settings), clock or Clock())


def similar_cache(threshold: float = 0.8, clock: Clock | None = None, **settings: Any) -> AnswerCache:
    # The embedding runs in a thread, which may have to wait for a busy machine.
    settings |= {"embedding": f"{HERE}letters", "threshold": threshold, "embedding_timeout_s": 30.0}
    return cache_of(clock, **settings)


def asked(text: str, context: str | None = "alone") -> Question:
    return Question(digest_of(context, text), context.encode() if context else None, text)


def outcome(answer: str = "42", *, end: StepEnd = StepEnd.END_OF_SEQUENCE, text: str | None = None) -> SearchOutcome:
    """A search of two steps, one of them pruned, that found ``answer``."""
    tree = SearchTree(7)
    first, pruned = tree.request(tree.root, 2)
    tree.write(first, Step((1, 2), text or f"It is {answer}.", end), ends=True)
    tree.complete(first, 0.9)
    tree.write(pruned, Step((3,), "No.\n\n", StepEnd.DELIMITER))
    tree.complete(pruned, 0.1)
    tree.prune(pruned)
    group = AnswerGroup(answer, 1, tree.multiplicity(first), 1.0, 0.9, first, 0.9)
    selection = AnswerSelection(first, answer, 0.9, 1.0, (group,))
    return SearchOutcome("s1", 7, tree, selection, first.text, StopReason.FINISHED, False, SearchCost(nodes=2))


async def found(cache: AnswerCache, question: Question) -> str | None:
    """The answer that the cache has for a question."""
    match, _ = await cache.match(question)
    return match.kept.outcome.selection.answer if match else None


async def keep(cache: AnswerCache, question: Question, answer: str = "42") -> None:
    cache.keep(question, await cache.vector_of(question), outcome(answer), [])
    assert cache.check_integrity() == []


async def test_the_same_question_is_answered_and_another_is_not() -> None:
    cache = cache_of()
    await keep(cache, asked("6*7?"))
    assert await found(cache, asked("6*7?")) == "42"
    assert await found(cache, asked("6*8?")) is None
    assert await found(cache, asked("6*7?", "another conversation")) is None
    assert cache.lookups == {"same": 1, "similar": 0, "miss": 2}


async def test_an_answer_has_the_paths_of_the_answers_and_no_other_part_of_the_tree() -> None:
    cache, original = cache_of(), outcome()
    event = StepScored((0,), 0.9, 0.9, "It is 42.", 2, 1, True, 2, None, 5, 0, None, ())
    cache.keep(asked("6*7?"), None, original, [event])
    match, _ = await cache.match(asked("6*7?"))
    assert match is not None
    again = match.kept.found("s2")
    assert (again.search_id, again.seed, again.cost, again.asked) == ("s2", 7, original.cost, "6*7?")
    node = again.selection.node
    assert (node.id, again.tree.text_of(node), node.parent) == ((0,), "It is 42.", again.tree.root)
    assert again.selection.groups[0].best is node
    assert node.status is NodeStatus.TERMINAL
    assert again.tree.root.children == {}
    assert match.kept.events == (event,)


async def test_an_answer_that_read_others_is_kept_without_them() -> None:
    cache, original = cache_of(), outcome()
    tree = original.tree
    context = ContextNode((), None, reading=Reading((tree.root.children[0],), "refine"))
    tree.begin(context)
    [node] = tree.request(context, 1)
    tree.write(node, Step((1, 2), "It is 42 after all.", StepEnd.END_OF_SEQUENCE), ends=True)
    tree.complete(node, 0.9)
    event = ContextStarted(context.id, ((0,),), "refine", 12, 2, 2)
    selection = original.selection._replace(node=node)
    cache.keep(asked("6*7?"), None, replace(original, selection=selection), [event])
    assert cache.check_integrity() == []
    match, _ = await cache.match(asked("6*7?"))
    assert match is not None
    again = match.kept.found("s2")
    assert (again.selection.node.id, again.selection.node.text) == ((0, 100_000, 0), "It is 42 after all.")
    assert match.kept.events == (event,)


async def test_an_answer_is_forgotten_at_its_age_however_often_it_is_asked() -> None:
    clock = Clock()
    cache = cache_of(clock, seconds=60)
    await keep(cache, asked("6*7?"))
    for clock.now in (30.0, 59.0):
        assert await found(cache, asked("6*7?")) == "42"
    clock.now = 60.0
    assert await found(cache, asked("6*7?")) is None
    await keep(cache, asked("another"))
    assert (len(cache), cache.evictions) == (1, 1)


async def test_an_old_answer_is_not_found_by_a_similar_question() -> None:
    clock = Clock()
    cache = similar_cache(clock=clock, seconds=60)
    await keep(cache, asked("Tell me 6*7"))
    assert await found(cache, asked("Tell me: 6*7")) == "42"
    clock.now = 60.0
    assert await found(cache, asked("Tell me: 6*7")) is None
    assert cache.check_integrity() == []


async def test_the_least_recently_used_answers_leave_when_memory_is_full() -> None:
    cache = cache_of(memory_bytes=1 << 20)
    text = "x" * 300_000
    for name in ("a", "b", "c"):
        cache.keep(asked(name), None, outcome(text=text), [])
    assert await found(cache, asked("a")) == "42"
    cache.keep(asked("d"), None, outcome(text=text), [])
    assert [await found(cache, asked(name)) for name in ("a", "b", "c", "d")] == ["42", None, "42", "42"]
    assert cache.evictions == 1
    cache.keep(asked("large"), None, outcome(text="x" * MAX_ENTRY_BYTES), [])
    assert (await found(cache, asked("large")), len(cache)) == (None, 3)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900_000), st.booleans(), st.integers(0, 20)), max_size=40))
def test_memory_is_bounded_and_only_what_is_kept_is_compared(
    work: list[tuple[int, int, bool, int]],
) -> None:
    clock = Clock()
    cache = AnswerCache(AnswerCacheSettings(memory_bytes=1 << 20, seconds=60), clock)
    vector = np.ones(4, np.float32) / 2
    for number, length, compared, seconds in work:
        clock.now += seconds
        cache.keep(asked(f"question {number}"), vector if compared else None, outcome(text="x" * length), [])
        assert cache.memory_bytes <= 1 << 20
        assert cache.check_integrity() == []


async def test_a_new_answer_replaces_the_old_one() -> None:
    cache = similar_cache()
    await keep(cache, asked("Tell me 6*7"), "41")
    await keep(cache, asked("Tell me 6*7"), "42")
    assert await found(cache, asked("Tell me: 6*7")) == "42"
    cache.keep(asked("Tell me 6*7"), None, outcome("43"), [])  # its embedding failed
    assert await found(cache, asked("Tell me: 6*7")) is None
    assert await found(cache, asked("Tell me 6*7")) == "43"
    assert (len(cache), cache.check_integrity()) == (1, [])


FINISHED, BUDGETS = StopReason.FINISHED, (StopReason.TOKENS, StopReason.NODES)


def test_only_complete_answers_are_kept() -> None:
    complete = outcome()
    assert is_complete(complete)
    cut_off = outcome(end=StepEnd.LENGTH)
    without_answer = cut_off.selection._replace(answer=None, groups=())
    incomplete = [
        *(replace(complete, stop_reason=reason) for reason in StopReason if reason not in (FINISHED, *BUDGETS)),
        *(replace(cut_off, selection=without_answer, stop_reason=reason) for reason in BUDGETS),
        replace(complete, degraded=True),
        replace(complete, selection=complete.selection._replace(unread=1)),
        replace(complete, cost=SearchCost(given_back_branches=1)),
        replace(cut_off, selection=without_answer),
    ]
    assert len(incomplete) == len(StopReason) + 3
    cache = cache_of()
    for each in incomplete:
        assert not is_complete(each)
        cache.keep(asked("6*7?"), None, each, [])
    assert len(cache) == 0
    assert is_complete(replace(cut_off, text="It is")), "a stop text ended it"
    for reason in BUDGETS:
        assert is_complete(replace(complete, stop_reason=reason)), "the budget has left a finished path"


async def test_a_question_that_means_the_same_is_answered_within_its_conversation_alone() -> None:
    cache = similar_cache()
    await keep(cache, asked("What is 6*7 in all?"))
    match, _ = await cache.match(asked("In all, what is 6*7?"))
    assert match is not None
    assert match.similarity == pytest.approx(1.0)
    assert await found(cache, asked("In all, what is 6*7?", "another conversation")) is None
    assert await found(cache, asked("In all, what is 6*7?", None)) is None
    assert await found(cache, asked("Zyx 6*7 jkqz?")) is None, "below the threshold"
    assert cache.lookups == {"same": 0, "similar": 1, "miss": 3}


async def test_the_most_similar_question_answers() -> None:
    cache = similar_cache(threshold=0.1)
    await keep(cache, asked("eeee 6*7"), "41")
    await keep(cache, asked("aaab 6*7"), "42")
    assert await found(cache, asked("aaaa 6*7")) == "42"


async def test_long_questions_are_matched_by_their_text_alone() -> None:
    cache = similar_cache(threshold=0.1)
    long = "word " * (MAX_QUESTION_CHARS // 5)
    await keep(cache, asked(f"{long}6*7"))
    assert await found(cache, asked(f"{long}6*7")) == "42"
    assert await found(cache, asked(f"{long} 6*7")) is None


NEAR_MISSES = [
    ("Start with 149. Add 3.", "Start with 149. Add 4."),
    ("Start with 3. Multiply by 149.", "Start with 149. Multiply by 3."),
    ("Add 3, then subtract 4.", "Subtract 3, then add 4."),
    ("Add 3. Multiply by 4.", "Multiply by 4. Add 3."),
    ("Increase by 5.", "Decrease by 5."),
    ("Go up by 5.", "Go down by 5."),
    ("How many are even?", "How many are odd?"),
    ("Which of them can fly?", "Which of them can not fly?"),
    ("Which of them can fly?", "Which of them can't fly?"),
    ("At least 3 of 10", "At most 3 of 10"),
    ("Three apples", "Four apples"),
    ("How far is 5 km in miles?", "How far is 5 km in meters?"),
    ("It takes 5 minutes.", "It takes 5 hours."),
    ("It costs €5.", "It costs £5."),
    ("Solve 2x + 3 = 7 for x.", "Solve 2x - 3 = 7 for x."),
    ("Solve for x.", "Solve for y."),
    (r"What is \frac{1}{2} of 3?", r"What is \frac{2}{1} of 3?"),
    ("What is 1,5 + 2?", "What is 15 + 2?"),
    ("What is -5?", "What is 5?"),
    ("5. What is its square?", "6. What is its square?"),
    ("the largest one", "the smallest one"),
    ("计算 3 + 4", "计算 3 + 5"),
]


@pytest.mark.parametrize(("one", "other"), NEAR_MISSES)
async def test_near_misses_never_hit(one: str, other: str) -> None:
    assert marks_of(one) != marks_of(other)
    cache = similar_cache(threshold=1e-6)
    await keep(cache, asked(one))
    assert await found(cache, asked(other)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Start with 149. Add 3. What is the result?", "Begin at 149. Increase by 3. What do you get?"),
        ("Take 5,050 and go down by 7", "Take 5050. Subtract 7."),
        ("What is 3 × 4?", r"Tell me what $3 \times 4$ is"),
        ("It takes five minutes.", "5 minutes are needed."),
        ("What is 5!?", "Hello! What is 5! then?"),
    ],
)
def test_other_words_for_the_same_have_equal_marks(one: str, other: str) -> None:
    assert marks_of(one) == marks_of(other)


def fails(texts: Sequence[str]) -> list[list[float]]:
    raise RuntimeError(f"no vector for {texts}")


@pytest.mark.parametrize(
    "rows",
    [[], [[]], [[0.0, 0.0]], [[float("nan"), 1.0]], [[1.0], [2.0]], [1.0, 2.0], [["a"]], None, [[1.0, 2.0], [1.0]]],
)
async def test_an_embedding_that_returns_nonsense_gives_no_vector(rows: Any) -> None:
    embedder = Embedder(lambda texts: rows, 5.0, "embedding")
    assert await embedder.vector_of("a") is None
    assert embedder.failures == 1
    embedder.close()


async def test_vectors_have_one_dimension_and_length_one() -> None:
    rows = [[3.0, 4.0]]
    embedder = Embedder(lambda texts: rows, 5.0, "embedding")
    vector = await embedder.vector_of("a")
    assert vector is not None
    assert vector.tolist() == pytest.approx([0.6, 0.8])
    rows[0] = [1.0, 2.0, 3.0]
    assert await embedder.vector_of("a") is None
    embedder.close()


async def test_texts_are_embedded_in_one_call_within_the_shorter_timeout() -> None:
    calls: list[list[str]] = []

    async def embedding(texts: Sequence[str]) -> list[list[float]]:
        calls.append([*texts])
        if "slow" in texts:
            await asyncio.Event().wait()
        return [[2.0, 0.0] for _ in texts]

    embedder = Embedder(embedding, 30.0, "embedding")
    vectors = await embedder.vectors_of(["a", "b"])
    assert vectors is not None
    assert [vector.tolist() for vector in vectors] == [[1.0, 0.0], [1.0, 0.0]]
    assert await embedder.vectors_of(["slow", "b"], 0.01) is None
    assert (calls, embedder.failures) == ([["a", "b"], ["slow", "b"]], 2)
    embedder.close()


async def test_a_coroutine_function_is_awaited() -> None:
    async def embedding(texts: Sequence[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return [[1.0, 0.0] for _ in texts]

    embedder = Embedder(embedding, 5.0, "embedding")
    vector = await embedder.vector_of("a")
    assert vector is not None
    embedder.close()


async def test_a_failing_embedding_is_a_miss_and_tells_no_text(caplog: pytest.LogCaptureFixture) -> None:
    cache = cache_of(embedding=f"{HERE}fails", threshold=0.9)
    with caplog.at_level(logging.WARNING):
        await keep(cache, asked("my secret"))
        assert await found(cache, asked("my secrets")) is None
    assert await found(cache, asked("my secret")) == "42"
    assert cache.embedding_failures == 2
    assert "secret" not in caplog.text
    assert len(caplog.records) == 1
    cache.close()


async def test_an_embedding_that_hangs_delays_one_question_only() -> None:
    entered, returns = threading.Event(), threading.Event()

    def hangs(texts: Sequence[str]) -> list[list[float]]:
        entered.set()
        returns.wait(120)
        return [[1.0]]

    embedder = Embedder(hangs, 0.02, "embedding")
    while not entered.is_set():  # a call that the thread has not begun in time is never made
        assert await embedder.vector_of("a") is None
    embedder._timeout_s = 120.0
    async with asyncio.timeout(60):
        assert await embedder.vector_of("b") is None
    returns.set()
    async with asyncio.timeout(60):
        while await embedder.vector_of("c") is None:
            await asyncio.sleep(0.01)
    embedder.close()


@pytest.mark.parametrize(
    "given",
    [
        {"embedding": f"{HERE}letters"},
        {"threshold": 0.9},
        {"embedding": f"{HERE}letters", "threshold": 1.1},
        {"embedding": "nowhere:nothing", "threshold": 0.9},
        {"seconds": 0},
        {"memory_bytes": 1000},
    ],
)
def test_wrong_settings_are_refused_with_their_path(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        AppConfig.model_validate({"controller": {"answer_cache": given}})
    assert refused.value.errors()[0]["loc"][:2] == ("controller", "answer_cache")


def test_there_is_no_cache_unless_set() -> None:
    assert AnswerCache.of(AppConfig().controller.answer_cache) is None
