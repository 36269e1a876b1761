"""Messages before the questions in the training data of the embedded models."""

import random
from itertools import islice

from deployments.embedded.problems import Split, draw_problems
from scripts.embedded.conversations import CHARS, MAX_SYSTEM_CHARS, SHARES, conversations, system_text
from scripts.embedded.tokenizer import STEP_DELIMITER

BATCHES = 2_000
HELD_OUT = {
    "You are a helpful assistant.",
    "Talk like a sea captain from the 1700s; stay in character whatever happens, and mind the 42 gulls.",
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "You are ChatNova, a large language model. Knowledge cutoff: 2025-06. Current date: 2026-11-21.",
}
"""System prompts under which the models were measured (benchmarks/results/NOTES.md)."""


def test_every_kind_has_its_share_and_the_question_is_last() -> None:
    rng = random.Random(1)
    problems = list(islice(draw_problems(Split.TRAIN, 5), 2))
    seen = {"none": 0, "system": 0, "history": 0}
    for _ in range(BATCHES):
        batch = conversations(problems, rng, STEP_DELIMITER)
        assert [one.problem for one in batch] == problems
        assert all(one.turns[-1] == {"role": "user", "content": one.problem.text} for one in batch)
        roles = {tuple(turn["role"] for turn in one.before) for one in batch}
        assert len(roles) == 1, "rows of a batch have the same kind of thing before them"
        [role] = roles
        seen["history" if "assistant" in role else "system" if role else "none"] += 1
    assert abs(seen["none"] / BATCHES - SHARES["none"]) < 0.05
    assert abs(seen["history"] / BATCHES - SHARES["history"]) < 0.03


def test_system_texts_have_the_requested_length_and_exclude_the_benchmarks_prompts() -> None:
    rng = random.Random(2)
    for _ in range(BATCHES):
        chars = rng.randint(CHARS["short"][0], MAX_SYSTEM_CHARS)
        text = system_text(rng, chars)
        assert 0 < len(text) <= chars
        assert text not in HELD_OUT


def test_the_same_seed_draws_the_same_conversations() -> None:
    problems = list(islice(draw_problems(Split.TRAIN, 5), 4))
    drawn = [[conversations(problems, random.Random(seed), STEP_DELIMITER) for seed in range(50)] for _ in range(2)]
    assert drawn[0] == drawn[1]
