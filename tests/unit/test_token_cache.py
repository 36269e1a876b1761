"""The memory in which a reward model's replica keeps the token ids of texts is bounded."""

import tracemalloc

from deployments.engines.rewards.heads import TokenCache

MOST_BYTES = 25_000_000


def test_remembered_texts_take_at_most_the_stated_memory() -> None:
    for tokens, entries in ((1, 30_000), (12, 20_000), (1_000, 600)):
        tracemalloc.start()
        kept = TokenCache(lambda text, tokens=tokens: [300 + int(text) % 1_000 for _ in range(tokens)])  # type: ignore[misc]
        for number in range(entries):
            assert len(kept[f"{number:>{4 * tokens}}"]) == tokens
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(kept) < entries, "the first ones were forgotten"
        assert held < MOST_BYTES
        assert f"{entries - 1:>{4 * tokens}}" in kept
