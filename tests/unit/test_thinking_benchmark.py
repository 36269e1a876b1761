"""How `benchmarks.thinking` reads branches: thinking is counted from the tokens, given ones excluded."""

import pytest

from benchmarks.thinking import Reader, Written, figures_of
from search.tree import NO_THOUGHT, Step, StepEnd, Thought
from tests.engine.thinking_vocabularies import thinking_vocabulary

TOKENIZER = thinking_vocabulary("text")
GIVEN = "\n</think>\n\n"


def read(*pieces: str, given: int | None = None) -> Written:
    """A branch whose first step is written in pieces, of which one was given. It is over where the thought is."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    text = "".join(pieces)
    for number, piece in enumerate(pieces):
        start = len(ids)
        ids += TOKENIZER.encode(piece, add_special_tokens=False)
        if number == given:
            spans.append((start, len(ids)))
    characters = text.index("</think>") + len("</think>") if "</think>" in text else len(text)
    thought = Thought(len(ids), characters) if text.startswith("<think>") else NO_THOUGHT
    first = Step(tuple(ids), text, StepEnd.DELIMITER, thought=thought, given=tuple(spans))
    behind = Step((1, 2, 3), "ab.", StepEnd.END_OF_SEQUENCE)
    return Reader(TOKENIZER).written([first, behind], "p", True)


def tokens(text: str) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=False))


def test_a_thought_that_was_cut_off_has_the_tokens_between_its_mark_and_the_given_ones() -> None:
    branch = read("<think>", "ab.\nab", GIVEN, "ab.\n\n", given=2)
    assert (branch.thought, branch.given) == ("ab.\nab", GIVEN)
    assert (branch.thinking_tokens, branch.given_tokens) == (tokens("ab.\nab"), tokens(GIVEN))
    assert branch.cut_off
    assert branch.closed
    assert branch.solution_tokens == tokens("ab.\n\n") + 3
    assert branch.keeps(branch.thinking_tokens)
    assert not branch.keeps(branch.thinking_tokens - 1)


def test_a_thought_that_ends_itself_counts_its_closing_mark() -> None:
    branch = read("<think>", "ab", "</think>", "\n\nab.\n\n")
    assert (branch.thought, branch.given, branch.cut_off) == ("ab", "", False)
    assert branch.thinking_tokens == tokens("ab") + tokens("</think>")
    assert branch.solution.strip().startswith("ab.")


def test_a_thought_without_an_end_and_a_branch_without_a_thought() -> None:
    endless = read("<think>", "abab")
    assert (endless.closed, endless.thinking_tokens) == (False, tokens("abab"))
    without = read("ab <think> ab")
    assert (without.thinks, without.thinking_tokens, without.thought) == (False, 0, "")
    assert without.solution_tokens == tokens("ab <think> ab") + 3


def test_no_thinking_is_a_given_thought_without_tokens() -> None:
    branch = read("<think>\n\n</think>\n\n", "ab.", given=0)
    assert (branch.thinking_tokens, branch.cut_off, branch.thinks) == (0, False, True)
    figures = figures_of(0, [branch])
    assert (figures["kept"], figures["given_tokens_mean"]) == (1.0, tokens("<think>\n\n</think>\n\n"))


@pytest.mark.parametrize(("budget", "kept"), [(None, 1.0), (1, 0.5)])
def test_figures_tell_a_budget_that_was_not_kept(budget: int | None, kept: float) -> None:
    branches = [read("<think>", "ababab", GIVEN, "ab", given=2), read("ab")]
    figures = figures_of(budget, branches)
    assert (figures["kept"], figures["think"], figures["cut_off"]) == (kept, 0.5, 0.5)
    assert figures["thinking_tokens_largest"] == tokens("ababab")
