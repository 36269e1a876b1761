"""The allocator's settings of processes that store KV."""

import pytest

from kvstore.malloc import malloc_environment


def test_an_operators_own_setting_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1048576")

    assert malloc_environment() == {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_ARENA_MAX": "2"}
