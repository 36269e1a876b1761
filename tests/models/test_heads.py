"""Input of Skywork's PRM with the vocabulary that it was trained with."""

from deployments.engines.rewards.value_head import ValueHead, ValueHeadSettings
from tests.engine.published import skywork_input
from tests.models.conftest import load_tokenizer

QUESTION = "Janet\u2019s ducks lay 16 eggs per day. She eats 3. How many are left?"
STEPS = [
    "To determine how many are left, we follow these steps:\n\n",
    "1. **Eggs laid per day.**\n   Janet's ducks lay 16 eggs per day.\n\n",
    "2. **Eggs left.**\n   \\[\n   16 - 3 = 13 \\text{ eggs}\n   \\]\n\n",
    "Therefore, the answer is \\(\\boxed{13}\\).",
]


def test_the_input_equals_the_published_one() -> None:
    tokenizer = load_tokenizer("Qwen2.5")
    tokenizer.bos_token = "<|endoftext|>"  # Skywork's tokenizer has a BOS token, Qwen's has none
    newline = tokenizer.encode("\n")
    assert len(tokenizer.encode(".\n")) == 1  # so that the input differs from that of the whole text
    ids, flags = skywork_input(tokenizer, QUESTION, "\n".join(step.strip() for step in STEPS))
    [query] = ValueHead(ValueHeadSettings(model="any"), tokenizer).queries(QUESTION, STEPS, len(STEPS))
    assert query.token_ids == ids
    assert [[query.token_ids[tag]] for tag in query.tags] == [newline] * len(STEPS)
    assert all(flags[tag] for tag in query.tags)
    assert query.tags[-1] == len(ids) - 1
