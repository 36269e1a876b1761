"""A damaged or vanished part of the store spoils nothing else: lists show the rest, and what is damaged says so."""

import io
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from deployments.store import (
    BatchRecord,
    Damaged,
    NotThere,
    Owned,
    SearchEnd,
    SearchRecord,
    SearchStatus,
    Store,
    StoreSettings,
)
from deployments.store.records import MAX_RECORD_BYTES, new_id

KINDS = ("searches", "batches", "files")


def _in_a_directorys_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _written(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": _written(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[:-9]) and None,
    "no object": _written(b"[1, 2]"),
    "a number": _written(b"1e999"),
    "other fields": _written(b'{"id": 7, "created": "yesterday"}'),
    "NaN": _written(b'{"created": NaN}'),
    "no UTF-8": _written(b'{"id": "\xff\xfe"}'),
    "deep": _written(b"[" * 100_000),
    "zeros": _written(b"\0" * 4096),
    "huge": lambda path: path.write_bytes(b" " * (MAX_RECORD_BYTES + 1) + path.read_bytes()) and None,
    "a directory": _in_a_directorys_place,
    "a loop": _dangling,
}


def made(root: Path) -> Owned:
    store = Store(root, StoreSettings.model_validate({"path": str(root)}))
    store.prepare()
    return store.owned("anonymous")


def added(owned: Owned, kind: str) -> str:
    """Adds a search, batch or file, and returns its id."""
    now = time.time()
    if kind == "searches":
        name = new_id("")
        record = SearchRecord(id=name, created=now, model="m", strategy="greedy", n=1, prompt_tokens=3)
        writer = owned.searches.begin(record)
        writer.end(SearchEnd(status=SearchStatus.FINISHED, ended=now), json.dumps({"id": name, "choices": []}))
        return name
    name = owned.files.add(io.BytesIO(b"{}\n"), "a.jsonl").id
    if kind == "files":
        return name
    batch = BatchRecord(
        id=owned.batches.new_id(),
        endpoint="/v1/chat/completions",
        input_file_id=name,
        completion_window="1h",
        created=now,
        expires=now + 3600,
    )
    owned.batches.add(batch, owned.files.path(name))
    return batch.id


def record_of(root: Path, kind: str, name: str) -> Path:
    directory = root / "owners" / "anonymous" / kind
    return directory / f"{name}.json" if kind == "files" else directory / name / "record.json"


def listed(owned: Owned, kind: str) -> list[str]:
    return [each.id for each in getattr(owned, kind).newest_first()]


@pytest.mark.parametrize("kind", KINDS)
@given(
    hurt=st.lists(st.one_of(st.none(), st.just("gone"), st.sampled_from(sorted(DAMAGE))), max_size=5),
    during=st.integers(0, 5),
)
@hypothesis_settings(max_examples=30, deadline=None)
def test_lists_hold_all_that_is_whole_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, kind: str, hurt: list[str | None], during: int
) -> None:
    """Entry number ``during`` is hurt when the first record is read, so after the directory was."""
    root = tmp_path_factory.mktemp("store")
    owned = made(root)
    names = [added(owned, kind) for _ in hurt]

    def strike(name: str, how: str | None) -> None:
        path = record_of(root, kind, name)
        if how == "gone":
            shutil.rmtree(path.parent) if kind != "files" else path.unlink()
        elif how is not None:
            DAMAGE[how](path)

    later = list(zip(names, hurt, strict=True))[during:]
    for name, how in zip(names[:during], hurt, strict=False):
        strike(name, how)
    module = __import__(f"deployments.store.{kind}", fromlist=["read_record"])
    read = module.read_record

    def struck(*args: Any, **kwargs: Any) -> Any:
        while later:
            strike(*later.pop())
        return read(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_record", struck)
        shown = listed(owned, kind)
    whole = {name for name, how in zip(names, hurt, strict=True) if how is None}
    assert whole == set(shown)
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("damage", sorted(DAMAGE))
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_is_named_and_can_be_removed(tmp_path: Path, kind: str, damage: str) -> None:
    owned = made(tmp_path)
    whole, hurt = added(owned, kind), added(owned, kind)
    DAMAGE[damage](record_of(tmp_path, kind, hurt))
    entries = getattr(owned, kind)
    with pytest.raises(Damaged, match=hurt):
        _ = entries.get(hurt) if kind == "files" else entries.get(hurt).record
    entries.sweep(0)
    (entries.delete if kind == "files" else entries.remove)(hurt)
    with pytest.raises(NotThere):
        entries.get(hurt)
    assert listed(owned, kind) == [whole]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_another_entry_is_damaged(tmp_path: Path, kind: str) -> None:
    owned = made(tmp_path)
    one, other = added(owned, kind), added(owned, kind)
    record_of(tmp_path, kind, one).write_bytes(record_of(tmp_path, kind, other).read_bytes())
    assert listed(owned, kind) == [other]


def test_a_damaged_file_beyond_its_time_is_swept(tmp_path: Path) -> None:
    owned = made(tmp_path)
    name = added(owned, "files")
    path = record_of(tmp_path, "files", name)
    path.write_bytes(b"")
    os.utime(path, (1.0, 1.0))
    owned.files.sweep(0)
    assert not path.exists()
