"""Transfers that a cache server owes are awaited until they are done, or until nothing can complete them."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.engine.conftest import quiet

with quiet():
    from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter

    from kvstore.connector import in_flight
    from kvstore.connector.in_flight import HELD_S, PatientWorkerAdapter, is_there, listening_at


class Future:
    """A future of LMCache's."""

    def __init__(self) -> None:
        self.outcome: bool | Exception | None = None

    def query(self) -> bool:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome is not None

    def result(self, timeout: float | None = None) -> bool:
        assert isinstance(self.outcome, bool)
        return self.outcome


class Transfers:
    """Stands in for LMCache's connection to the server."""

    def __init__(self) -> None:
        self.replies: list[Future] = []

    def submit(self, *_: Any, **__: Any) -> Future:
        self.replies.append(Future())
        return self.replies[-1]

    submit_store = submit_retrieve = submit


class Operation:
    token_ids = (1, 2, 3)
    start, end, skip_first_n_tokens = 0, 3, 0
    block_ids = ((7, 8),)
    flat_block_ids = (7, 8)


class Nothing:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Adapter(PatientWorkerAdapter):
    """Without a server: LMCache's own code around stores and loads."""

    def __init__(self, server: psutil.Process | None = None) -> None:
        self._collects, self._asked, self._gone, self._looked_at, self._clock, self._now = (
            False,
            {},
            set(),
            0.0,
            1.0,
            0.0,
        )
        self._server = server
        self._health_event = threading.Event()
        self._health_event.set()
        self.dispatcher = None
        self.transfer_ctx: Any = Transfers()
        self.parallel_strategy: Any = SimpleNamespace(is_kv_writer=True, kv_world_size=1, kv_worker_id=0)
        self.lazy_offload, self._kv_events_enabled = True, False
        self.kv_caches, self.blocks_in_chunk, self.model_name = {}, 1, ""
        self.store_futures, self.retrieve_futures, self.store_events, self.retrieve_events = {}, {}, {}, {}
        self._pending_store_kv_events: dict[str, Any] = {}
        self.error_block_ids, self._failed_request_ids, self._dropped_retrieves = set(), set(), set()
        self._completed_store_requests: dict[str, int] = {}
        self._failed_store_requests: set[str] = set()
        self.request_telemetry = Nothing()

    def _ensure_heartbeat_started(self) -> None:
        pass

    def _create_key(self, *_: Any, **__: Any) -> str:
        return "a key"

    def _block_ids_per_group(self, op: Any) -> Any:
        return op.block_ids

    def store(self, request_id: str) -> Future:
        self.submit_store_request(request_id, Operation, None)
        return self.transfer_ctx.replies[-1]

    def load(self, request_id: str) -> Future:
        self.submit_retrieve_request(request_id, Operation, None)
        return self.transfer_ctx.replies[-1]

    def later(self, seconds: float) -> None:
        self._clock += seconds

    def finished(self) -> tuple[set[str], set[str]]:
        """The requests that it reports as stored, and those reported as loaded."""
        _, loaded = self.get_finished_with_lazy_offload()
        return set(self.get_completed_store_requests() or ()), loaded or set()


@pytest.fixture
def process() -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield psutil.Process(child.pid)
    child.kill()
    child.communicate()


def test_transfers_of_a_silent_server_stay_open(process: psutil.Process) -> None:
    adapter = Adapter(process)
    stores, loads = adapter.store("stores"), adapter.load("loads")
    adapter._health_event.clear()
    process.suspend()
    assert adapter.finished() == (set(), set())
    assert not adapter.is_healthy

    stores.outcome = loads.outcome = True
    assert adapter.finished() == ({"stores"}, {"loads"})
    assert not adapter.error_block_ids
    assert not adapter._failed_store_requests


def test_transfers_of_a_dead_server_fail(process: psutil.Process) -> None:
    adapter = Adapter(process)
    adapter.store("stores")
    adapter.load("loads")
    assert adapter.finished() == (set(), set())
    process.kill()
    psutil.wait_procs([process], timeout=10)
    adapter.later(1.0)

    assert adapter.finished() == ({"stores"}, {"loads"})
    assert adapter.error_block_ids == {7, 8}
    assert adapter._failed_request_ids == {"loads"}
    assert adapter._failed_store_requests == {"stores"}
    assert adapter.finished() == (set(), set())


def test_transfers_that_take_too_long_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(in_flight.time, "monotonic", lambda: now)
    adapter = Adapter()
    adapter.store("stores")
    assert adapter.finished() == (set(), set())
    adapter.later(HELD_S - 1)
    adapter.load("loads")
    assert adapter.finished() == (set(), set())
    now += HELD_S
    assert adapter.finished() == ({"stores"}, set()), "a pause of all counts as a second of it"
    adapter.later(HELD_S - 1)
    assert adapter.finished() == (set(), {"loads"})


def test_a_preempted_request_does_not_wait_for_its_store() -> None:
    adapter = Adapter()
    adapter.store("stores")
    adapter.handle_preemptions(True)
    assert adapter.finished() == (set(), set()), "its blocks are held until it is stored"


def test_an_error_of_the_server_fails_the_request_alone() -> None:
    adapter = Adapter()
    stores, loads, well = adapter.store("stores"), adapter.load("loads"), adapter.store("well")
    assert adapter.finished() == (set(), set())
    stores.outcome = loads.outcome = RuntimeError("not known")
    well.outcome = True
    assert adapter.finished() == ({"stores", "well"}, {"loads"})
    assert adapter.error_block_ids == {7, 8}
    assert adapter._failed_store_requests == {"stores"}


def test_a_failed_store_is_reported_as_failed() -> None:
    adapter = Adapter()
    adapter.store("stores").outcome = False
    assert adapter.finished() == ({"stores"}, set())
    assert adapter._failed_store_requests == {"stores"}


def test_a_servers_process_is_found_by_its_address(process: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert listening_at(f"tcp://127.0.0.1:{port}") is None
        listener.listen()
        assert listening_at(f"tcp://127.0.0.1:{port}") == listening_at(f"tcp://localhost:{port}") == psutil.Process()
        assert listening_at(f"tcp://127.0.0.2:{port}") is None
        assert listening_at(f"tcp://10.0.0.9:{port}") is None, "what listens there is another machine's"
        monkeypatch.setattr(LMCacheMPWorkerAdapter, "_send_register_kv_caches_request", lambda *_: None)
        adapter = Adapter()
        adapter._url = f"tcp://127.0.0.1:{port}"
        adapter._send_register_kv_caches_request({})
        assert adapter._server == psutil.Process()
        assert listening_at(f"tcp://a-host:{port}") is None
    assert is_there(process)
    process.kill()
    psutil.wait_procs([process], timeout=10)
    assert not is_there(process)
