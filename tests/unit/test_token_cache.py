"""The memory in which a reward model's replica keeps the token ids of texts is bounded."""

import tracemalloc

import pytest

from deployments.engines.rewards import heads
from deployments.engines.rewards.heads import TokenCache

MOST_BYTES = 25_000_000
PART = 10
"""The cache of the test is this part of the real one: tracing memory is slow."""


def test_remembered_texts_take_at_most_the_stated_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "CACHE_TOKENS", heads.CACHE_TOKENS // PART)
    for tokens, entries in ((1, 3_000), (12, 2_000), (1_000, 60)):
        tracemalloc.start()
        kept = TokenCache(lambda text, tokens=tokens: [300 + int(text) % 1_000 for _ in range(tokens)])  # type: ignore[misc]
        for number in range(entries):
            assert len(kept[f"{number:>{4 * tokens}}"]) == tokens
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(kept) < entries, "the first ones were forgotten"
        assert held < MOST_BYTES / PART
        assert f"{entries - 1:>{4 * tokens}}" in kept
