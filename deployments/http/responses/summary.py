"""A search told in a few sentences, for the summary of a response's reasoning item."""

from deployments.http.replies import Head
from deployments.service.answer_cache import CachedOutcome
from search.answers.voting import SelectionRule, best_groups, decisive_shares
from search.run.report import SearchOutcome, StopReason

MAX_ANSWER_CHARS = 80
MAX_OTHERS = 3
"""Maximum number of answers named beside the winner."""
DECIDED = {
    SelectionRule.NAIVE: "score {:.2f}",
    SelectionRule.WEIGHTED: "{:.0%} of the weight",
    SelectionRule.MAJORITY: "{:.0%} of the votes",
}
"""What is said of the vote for an answer, by the rule that decided."""


def summary_of(outcome: SearchOutcome, head: Head, detailed: bool) -> str:
    """Returns what the search wrote and what decided for its answer; if ``detailed``, also the other answers and the
    cost."""
    cost, selection, tree = outcome.cost, outcome.selection, outcome.tree
    rule = head.wanted.selection
    groups = best_groups(selection.groups, rule)
    answers = [
        f"{_in_short(group.answer)} ({DECIDED[rule].format(vote)})"
        for group, vote in zip(groups, decisive_shares(groups, rule), strict=True)
    ]
    search, written = f"search ({head.strategy}, n = {head.n})", _count(cost.written_steps, "candidate step")
    if isinstance(outcome, CachedOutcome):  # which has the answering paths alone
        told = f"This is the answer of an earlier {search}, which wrote {written}."
    else:
        levels, ended = _count(tree.deepest, "level"), _count(len(tree.terminals), "path")
        told = f"The {search} wrote {written} on {levels}; {ended} ended."
    sentences = [
        told,
        f"The answer is {answers[0]}." if answers else "No path has an answer to vote on.",
    ]
    if outcome.stop_reason is not StopReason.FINISHED:
        sentences.append(f"It was ended early ({outcome.stop_reason}).")
    if detailed:
        if others := answers[1:]:
            sentences.append(f"{_count(len(others), 'other answer')} had votes: {', '.join(others[:MAX_OTHERS])}.")
        if selection.score is not None:
            sentences.append(
                f"The reward model scored {_count(cost.scored_steps, 'step')}; the answering path has the score "
                f"{selection.score:.2f}."
            )
        sentences.append(
            f"{_count(cost.generated_tokens, 'token')} were generated, {cost.answer_tokens} of them on the answering "
            f"path. In all: {cost.bill}."
        )
    return " ".join(sentences)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _in_short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= MAX_ANSWER_CHARS else f"{plain[:MAX_ANSWER_CHARS]}…"
