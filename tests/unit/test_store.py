"""Stored files, batches and searches: complete or absent, within their caps, visible to their owner only, and removed
after their time."""

import errno
import io
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pydantic import ValidationError

from deployments.store import (
    Batches,
    BatchRecord,
    BatchState,
    BatchStatus,
    Full,
    NotThere,
    OtherStore,
    Store,
    StoreBusy,
    StoreSettings,
)
from deployments.store import directory as directory_module
from deployments.store import files as files_module
from deployments.store.records import locked, new_id, write_record

OWNERS = ("anonymous", "0f" * 16)
HOUR_S = 3600.0


def make(path: Path, **changed: Any) -> Store:
    settings = StoreSettings.model_validate({"path": str(path), **changed})
    store = Store(path, settings)
    store.prepare()
    return store


def batch_of(store: Store, owner: str, file_id: str, window_s: float = HOUR_S) -> BatchRecord:
    now = time.time()
    return BatchRecord(
        id=store.owned(owner).batches.new_id(),
        endpoint="/v1/chat/completions",
        input_file_id=file_id,
        completion_window="1h",
        created=now,
        expires=now + window_s,
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make(tmp_path)


def test_a_path_must_be_absolute_or_begin_with_a_tilde() -> None:
    with pytest.raises(ValidationError, match="must be an absolute path"):
        StoreSettings.model_validate({"path": "here"})
    kept = StoreSettings.model_validate({"path": "~/x"}).path
    assert kept is not None
    assert kept.is_absolute()
    assert Store.of(StoreSettings()) is None


def test_a_different_directory_on_another_node_is_detected(tmp_path: Path) -> None:
    ours = make(tmp_path / "ours")
    known = ours.prepare()
    assert make(tmp_path / "ours").prepare(known) == known
    with pytest.raises(OtherStore, match="every node has to see the same one"):
        make(tmp_path / "other").prepare(known)
    assert (tmp_path / "ours").stat().st_mode & 0o077 == 0


class Keeping(RuleBasedStateMachine):
    """Random uploads and deletions by two owners, compared with a model of what should exist."""

    FILES, EACH, ALL = 3, 100, 200

    @initialize()
    def begin(self) -> None:
        root = Path(tempfile.mkdtemp(dir=self.root))
        self.store = make(root, files_max=self.FILES, file_bytes_max=self.EACH, bytes_max=self.ALL)
        self.model: dict[str, dict[str, bytes]] = {owner: {} for owner in OWNERS}

    root: Path

    @rule(owner=st.sampled_from(OWNERS), content=st.binary(max_size=130))
    def upload(self, owner: str, content: bytes) -> None:
        mine = self.model[owner]
        total = sum(map(len, mine.values()))
        fits = len(mine) < self.FILES and total < self.ALL and len(content) <= self.EACH
        fits = fits and total + len(content) <= self.ALL
        files = self.store.owned(owner).files
        if fits:
            mine[files.add(io.BytesIO(content), "a.jsonl").id] = content
        else:
            with pytest.raises(Full):
                files.add(io.BytesIO(content), "a.jsonl")

    @rule(owner=st.sampled_from(OWNERS), which=st.integers(0, 5))
    def delete(self, owner: str, which: int) -> None:
        everybodys = [name for each in self.model.values() for name in each]
        if not everybodys:
            return
        name = everybodys[which % len(everybodys)]
        if name in self.model[owner]:
            self.store.owned(owner).files.delete(name)
            del self.model[owner][name]
        else:
            with pytest.raises(NotThere):
                self.store.owned(owner).files.delete(name)

    @rule()
    def sweep(self) -> None:
        self.store.sweep()

    @invariant()
    def files_are_visible_to_their_owner_only(self) -> None:
        for owner, expected in getattr(self, "model", {}).items():
            files = self.store.owned(owner).files
            assert {each.id: files.path(each.id).read_bytes() for each in files.newest_first()} == expected

    @invariant()
    def nothing_else_exists(self) -> None:
        if hasattr(self, "store"):
            found = [path for path in (self.store._owners).rglob("*") if path.suffix == ".data"]
            assert len(found) == sum(map(len, self.model.values()))
            assert not list(self.store._owners.rglob(".draft-*"))


def test_files_always_match_the_model(tmp_path: Path) -> None:
    Keeping.root = tmp_path
    case = Keeping.TestCase
    case.settings = hypothesis_settings(max_examples=30, stateful_step_count=15, deadline=None)
    case("runTest").runTest()


@given(name=st.text(max_size=60) | st.sampled_from(["../../x", "file-..", "file-" + "0" * 31 + "/", "/etc/passwd"]))
@hypothesis_settings(max_examples=100, deadline=None)
def test_no_id_leads_out_of_the_store(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    store = make(tmp_path_factory.getbasetemp() / "names")
    for ask in (store.owned("a").files.get, store.owned("a").files.delete, store.owned("a").batches.get):
        with pytest.raises(NotThere):
            ask(name)
    if not name.isascii() or not name.isalnum() or name != name.lower():
        with pytest.raises(ValueError, match="unknown owner"):
            store.owned(name)


def test_concurrent_uploads_exceed_no_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "LOCK_WAIT_S", 60.0)  # a slow disk may take long for all of them
    store = make(tmp_path, files_max=5)
    refused: list[Full] = []

    def upload() -> None:
        try:
            store.owned("a").files.add(io.BytesIO(b"x"), "x")
        except Full as error:
            refused.append(error)

    threads = [threading.Thread(target=upload) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.owned("a").files.newest_first()) == 5
    assert {(each.setting, each.most) for each in refused} == {("files_max", 5)}
    assert len(refused) == 11


def test_expired_files_are_invisible_before_and_after_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path, keep_s=600.0)  # less than the age at which the sweep removes all that is stale
    files = store.owned("a").files
    short = files.add(io.BytesIO(b"x"), "x")
    batch = store.begin("a", batch_of(store, "a", short.id))
    assert short.expires - short.created == 600.0
    now = time.time()
    batch.tell(BatchState(status=BatchStatus.COMPLETED, ended=now))
    monkeypatch.setattr(time, "time", lambda: now + 600.0)
    for ask in (files.get, files.path, files.delete):
        with pytest.raises(NotThere):
            ask(short.id)
    with pytest.raises(NotThere):
        store.owned("a").batches.get(batch.record.id)
    assert files.newest_first() == store.owned("a").batches.newest_first() == []
    store.sweep()
    assert {path.name for path in (tmp_path / "owners").rglob("*") if path.is_file()} == {"lock"}


def test_a_partial_file_of_a_dead_process_is_removed_once_it_is_old(store: Store) -> None:
    files = store.owned("a").files
    kept = files.add(io.BytesIO(b"x"), "x")
    directory = files.path(kept.id).parent
    for name in (".draft-1", f"{new_id('file-')}.data"):
        (directory / name).write_bytes(b"half")
    store.sweep()
    assert len(list(directory.iterdir())) == 5
    for path in directory.iterdir():
        os.utime(path, (0, 0))
    store.sweep()
    assert sorted(path.suffix for path in directory.iterdir()) == ["", ".data", ".json"]
    assert files.newest_first() == [kept]


class TestBatches:
    def test_a_batch_keeps_its_input_after_the_file_is_deleted(self, store: Store) -> None:
        files = store.owned("a").files
        file = files.add(io.BytesIO(b"line\n"), "x")
        batch = store.begin("a", batch_of(store, "a", file.id))
        files.delete(file.id)
        store.sweep()
        assert batch.input_path.read_bytes() == b"line\n"
        assert batch.state == BatchState()

    def test_a_batch_is_refused_if_its_input_exceeds_the_total_cap(self, tmp_path: Path) -> None:
        store = make(tmp_path, bytes_max=10)
        files = store.owned("a").files
        file = files.add(io.BytesIO(b"x"), "x")
        (tmp_path / "results").write_bytes(b"r" * 12)
        files.adopt(tmp_path / "results", new_id("file-"), "results")
        with pytest.raises(Full, match=r"store\.bytes_max"):
            store.begin("a", batch_of(store, "a", file.id))
        assert store.pending() == []

    def test_a_file_of_another_owner_does_not_exist(self, store: Store) -> None:
        file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
        with pytest.raises(NotThere):
            store.begin("b", batch_of(store, "b", file.id))
        assert store.pending() == []
        batch = store.begin("a", batch_of(store, "a", file.id))
        with pytest.raises(NotThere):
            store.owned("b").batches.get(batch.record.id)

    def test_pending_batches_are_listed_oldest_first(self, store: Store) -> None:
        made = []
        for owner in ("b", "a", "b"):
            file = store.owned(owner).files.add(io.BytesIO(b"x"), "x")
            made.append(store.begin(owner, batch_of(store, owner, file.id)).record.id)
        pending = store.pending()
        assert [(each.owner, each.batch.record.id) for each in pending] == list(zip("bab", made, strict=True))
        store.finished(pending[0])
        assert [each.batch.record.id for each in store.pending()] == made[1:]
        newest = [batch.record.id for batch in store.owned("b").batches.newest_first()]
        assert newest == [made[2], made[0]]

    def test_a_stale_mark_without_a_batch_is_removed(self, store: Store, tmp_path: Path) -> None:
        mark = tmp_path / "pending" / f"{0:020}-a-{new_id('batch_')}"
        mark.touch()
        assert store.pending() == []
        assert mark.exists()
        os.utime(mark, (0, 0))
        assert store.pending() == []
        assert not mark.exists()

    def test_above_the_cap_the_oldest_ended_batch_is_removed(self, tmp_path: Path) -> None:
        store = make(tmp_path, batches_max=3)
        file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
        made = [store.begin("a", batch_of(store, "a", file.id)) for _ in range(3)]
        with pytest.raises(Full, match=r"at most 3 batches that have not ended can be stored \(store.batches_max\)"):
            store.begin("a", batch_of(store, "a", file.id))
        assert len(store.pending()) == 3
        for batch in made[1:]:
            batch.tell(BatchState(status=BatchStatus.COMPLETED, ended=time.time()))
        made.append(store.begin("a", batch_of(store, "a", file.id)))
        left = [batch.id for batch in store.owned("a").batches.newest_first()]
        assert left == [made[3].id, made[2].id, made[0].id]

    def test_a_batch_is_cancelling_until_its_runner_has_stopped(self, store: Store) -> None:
        file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
        batch = store.begin("a", batch_of(store, "a", file.id))
        batch.cancel()
        first = batch.cancelled
        batch.cancel()
        assert batch.state.status is BatchStatus.CANCELLING
        batch.tell(BatchState(status=BatchStatus.IN_PROGRESS, total=3))
        assert (batch.state.status, batch.state.total) == (BatchStatus.CANCELLING, 3)
        for ending in (BatchStatus.COMPLETED, BatchStatus.CANCELLED):
            batch.tell(BatchState(status=ending))
            assert batch.state.status is ending
        assert batch.cancelled == first

    def test_results_are_added_only_once(self, store: Store, tmp_path: Path) -> None:
        file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
        batch = store.begin("a", batch_of(store, "a", file.id))
        batch.output_path.write_bytes(b"result\n")
        files = store.owned("a").files
        taken = [files.adopt(batch.output_path, batch.result_id("output"), "o.jsonl") for _ in range(2)]
        assert taken[0] == taken[1]
        assert files.path(taken[0].id).read_bytes() == b"result\n"
        assert batch.result_id("error") != batch.result_id("output")
        assert [each.purpose for each in files.newest_first()] == ["batch_output", "batch"]

    def test_results_survive_a_concurrent_sweep(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        results = tmp_path / "results"
        results.write_bytes(b"result\n")
        os.utime(results, (0, 0))
        files, name = store.owned("a").files, new_id("file-")

        def swept(path: Path, record: Any) -> None:
            store.sweep()
            write_record(path, record)

        monkeypatch.setattr(files_module, "write_record", swept)
        files.adopt(results, name, "o.jsonl")
        assert files.path(name).read_bytes() == b"result\n"
        files.path(name).unlink()
        files.adopt(results, name, "o.jsonl")
        assert files.path(name).read_bytes() == b"result\n"

    def test_a_batch_added_before_an_error_keeps_its_mark(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        file = store.owned("a").files.add(io.BytesIO(b"x"), "x")

        def failing(_: Batches) -> None:
            raise OSError("no more")

        monkeypatch.setattr(Batches, "_drop_oldest", failing)
        with pytest.raises(OSError, match="no more"):
            store.begin("a", batch_of(store, "a", file.id))
        assert [each.batch.id for each in store.pending()] == [
            batch.id for batch in store.owned("a").batches.newest_first()
        ]
        assert len(store.pending()) == 1

    def test_dropping_a_batchs_work_can_be_repeated(self, store: Store) -> None:
        file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
        batch = store.begin("a", batch_of(store, "a", file.id))
        batch.output_path.write_bytes(b"result\n")
        batch.tell(BatchState(status=BatchStatus.COMPLETED))
        record = batch.record
        for _ in range(2):
            with batch.lease():
                batch.drop_work()
        assert not batch.input_path.exists()
        assert not batch.output_path.exists()
        assert (batch.record, batch.state.status) == (record, BatchStatus.COMPLETED)


def test_a_foreign_file_does_not_stop_the_sweep(store: Store, tmp_path: Path) -> None:
    (tmp_path / "owners" / ".DS_Store").touch()
    (tmp_path / "owners" / "a").write_text("no directory")
    files = store.owned("b").files
    kept = files.add(io.BytesIO(b"x"), "x")
    draft = files.path(kept.id).with_name(".draft-1")
    draft.touch()
    os.utime(draft, (0, 0))
    with pytest.raises(NotADirectoryError):
        store.sweep()
    assert not draft.exists()


def test_a_lease_belongs_to_one_process_and_ends_with_it(store: Store) -> None:
    file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
    batch = store.begin("a", batch_of(store, "a", file.id))
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    other = context.Process(target=_hold, args=(batch.input_path.parent / "lease", theirs))
    other.start()
    try:
        assert mine.poll(60)
        with pytest.raises(StoreBusy), batch.lease():
            pass
    finally:
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)
        other.join(10)
    with batch.lease(), pytest.raises(StoreBusy), batch.lease():
        pass


def _hold(path: Path, told: Any) -> None:
    with locked(path):
        told.send("held")
        time.sleep(120)


@pytest.fixture
def reading(store: Store) -> Iterator[list[Any]]:
    """Reads a batch's state continuously within the block, and returns what was read."""
    file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
    batch = store.begin("a", batch_of(store, "a", file.id))
    stop = threading.Event()
    seen: list[Any] = [batch]

    def read() -> None:
        while not stop.is_set():
            seen.append(batch.state.total)

    thread = threading.Thread(target=read)
    thread.start()
    yield seen
    stop.set()
    thread.join()


def test_a_state_is_never_read_half_written(reading: list[Any]) -> None:
    batch = reading[0]
    for total in range(200):
        batch.tell(BatchState(status=BatchStatus.IN_PROGRESS, total=total))
    seen = reading[1:]
    assert seen == sorted(seen)
    assert json.loads((batch.input_path.parent / "state.json").read_text())["total"] == 199


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """All that was synced to the disk, under the names that it had then."""
    found: set[Path] = set()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        found.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def test_what_is_kept_is_on_the_disk_with_its_names_before_it_counts(
    store: Store, synced: set[Path], tmp_path: Path
) -> None:
    """The names too: a renamed file is not there after a power failure if its directory was not synced."""
    owner = tmp_path / "owners" / "a"
    file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
    assert {tmp_path / "owners", owner, owner / "files"} <= synced
    synced.clear()
    batch = store.begin("a", batch_of(store, "a", file.id))
    assert {tmp_path / "pending", owner, owner / "batches"} <= synced
    assert any(path.parent == owner / "batches" and path.name.startswith(".draft-") for path in synced)
    for change in (batch.cancel, lambda: batch.tell(BatchState())):
        synced.clear()
        change()
        assert owner / "batches" / batch.id in synced
    batch.output_path.write_bytes(b"result\n")
    synced.clear()
    adopted = store.owned("a").files.adopt(batch.output_path, batch.result_id("output"), "o.jsonl")
    assert owner / "files" in synced
    assert len([path for path in synced if path.parent == owner / "files"]) == 2, "the results and their record"
    assert store.owned("a").files.path(adopted.id).read_bytes() == b"result\n"


def test_a_batch_whose_mark_is_lost_is_found_by_the_sweep(store: Store, tmp_path: Path) -> None:
    file = store.owned("a").files.add(io.BytesIO(b"x"), "x")
    lost, ended = (store.begin("a", batch_of(store, "a", file.id)) for _ in range(2))
    ended.tell(BatchState(status=BatchStatus.COMPLETED, ended=time.time()))
    names = {each.batch.id: each.name for each in store.pending()}
    for mark in (tmp_path / "pending").iterdir():
        mark.unlink()
    assert store.pending() == []
    store.sweep()
    assert [(each.name, each.owner, each.batch.id) for each in store.pending()] == [(names[lost.id], "a", lost.id)]


class TestWithoutHardLinks:
    @pytest.fixture(autouse=True)
    def no_links(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def link(source: Path, target: Path) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)

    def test_a_copy_replaces_nothing(self, tmp_path: Path) -> None:
        ours, theirs = tmp_path / "ours", tmp_path / "theirs"
        ours.write_text("ours")
        files_module.link_or_copy(ours, theirs)
        assert theirs.read_text() == "ours"
        theirs.write_text("theirs")
        files_module.link_or_copy(ours, theirs)
        assert theirs.read_text() == "theirs"

    def test_half_a_copy_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def copy(source: BinaryIO, target: BinaryIO) -> None:
            target.write(source.read(1))
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(files_module.shutil, "copyfileobj", copy)
        (tmp_path / "ours").write_text("ours")
        with pytest.raises(OSError, match="No space left"):
            files_module.link_or_copy(tmp_path / "ours", tmp_path / "theirs")
        assert not (tmp_path / "theirs").exists()

    def test_two_nodes_give_a_store_one_id(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other one has made the file, and writes it a little later."""
        make(tmp_path)
        monkeypatch.setattr(directory_module, "LOCK_WAIT_S", 60.0)
        mark, theirs = tmp_path / "id", new_id("")
        mark.write_text("")
        writing = threading.Timer(0.1, lambda: mark.write_text(theirs))
        writing.start()
        assert make(tmp_path).prepare() == theirs
        writing.join()
        monkeypatch.setattr(directory_module, "LOCK_WAIT_S", 0.1)
        mark.write_text("")
        with pytest.raises(OtherStore, match=r"id on .* contains no store id: remove it"):
            make(tmp_path)
