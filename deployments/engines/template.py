"""The template process of a node, from which engines are forked.

An engine's process spends most of its start importing vLLM. The template imports it once, in the environment that
engines need from their first instruction on (allocator, OpenMP), and forks every engine of the node that needs the same
one. It begins when the first replica does, so that it imports vLLM while the replica does.

It is Python's own fork server (``multiprocessing.forkserver``), shared by several processes: its socket and a FIFO have
names that follow from its environment and from the code. Every replica and every engine holds the FIFO's writing end;
when the last one is gone, the template ends. It is detached, because Ray kills a worker's children together with it.
The end of a template, however it comes, does not touch the engines that it has forked. Where it is missing or does not
answer, engines are spawned as vLLM does by itself.

Forking is safe here, unlike in a replica: the template has one thread, is no Ray worker, and has touched no device. On
a GPU engines are spawned, because which devices a process sees has to be settled before it imports torch.
"""

import gc
import hashlib
import logging
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from multiprocessing import connection, forkserver, popen_forkserver, reduction, resource_tracker, spawn, util
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from deployments.engines.environment import can_compile, engine_environment
from deployments.engines.settings import EngineSettings
from deployments.engines.sockets import MAX_PATH_BYTES, private_directory
from deployments.engines.vllm_build import runs_on_cpu

logger = logging.getLogger("banyan.engines")

MODULES = (
    "deployments.engines.arguments",  # first: it sets how vLLM logs
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "deployments.engines.rewards.plugin",
    "deployments.engines.step_scheduler",
    "deployments.engines.worker_extension",
)
"""What engines on a CPU import, but for LMCache's connector: it imports llvmlite, after which vLLM's search for kernels
in all modules fails. A module that is missing here costs time, nothing else."""
READ_EARLY = (
    *("CXX", "GOMP_", "HF_", "HOME", "KMP_", "LD_", "LMCACHE_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PATH"),
    *("PYTHON", "TCMALLOC_", "TMPDIR", "TORCH", "TRANSFORMERS_", "VIRTUAL_ENV", "VLLM_", "XDG_"),
)
"""Beginnings of the names of variables that are read when a process begins or imports vLLM."""
OURS = ("deployments", "kvstore", "search")
"""Our packages that engines import."""
FORK_S = 120.0
"""Longest wait for a fork: the template may be importing yet, on a machine that has much else to do."""
LOCK_POLL_S = 0.05
EXIT_STATUS_S = 5.0
"""Longest wait for the exit status of a process that has ended, which the template sends."""
UNKNOWN_STATUS = 255

Result = TypeVar("Result")


_templates: dict[frozenset[tuple[str, str]], "Template | None"] = {}
"""The templates that this process uses, by the variables of their engines."""
_lock = threading.Lock()


class TemplateLost(RuntimeError):
    """The template is gone or does not answer."""


class Template:
    """A client of a node's template. ``attach`` makes one."""

    def __init__(self, address: Path, alive: int) -> None:
        """
        Args:
            address: path of the template's socket.
            alive: the FIFO's writing end.
        """
        self._address = address
        self._alive = alive

    def fork(self, descriptors: list[int]) -> tuple[int, int]:
        """Asks for a process. Returns two file descriptors: from the first one its process id can be read, later its
        exit status; from the second one it reads what it is to run.

        Args:
            descriptors: open files that it gets, as multiprocessing passes them.

        Raises:
            TemplateLost: there is no template at the address.
        """
        status, child_status = os.pipe()
        child_data, data = os.pipe()
        passed = [child_data, child_status, self._alive, _tracker(), *descriptors]
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(self._address))
                reduction.sendfds(client, passed)
        except OSError as error:
            os.close(status)
            os.close(data)
            raise TemplateLost(f"no template process at {self._address}: {error}") from error
        finally:
            os.close(child_data)
            os.close(child_status)
        return status, data

    def Process(self, **arguments: Any) -> "ForkedProcess":  # noqa: N802 - the name of a multiprocessing context's method
        return ForkedProcess(self, **arguments)

    def call(self, function: Callable[[], Result]) -> Result:
        """Runs a function in a forked process and returns its result, or raises what it raised.

        Raises:
            TemplateLost: the process gave no result in time.
        """
        import cloudpickle  # type: ignore[import-untyped]  # pickles local functions too

        receiving, sending = multiprocessing.Pipe(duplex=False)
        process = self.Process(target=_answer, args=(cloudpickle.dumps(function), sending))
        with receiving:
            process.start()
            sending.close()
            try:
                if not receiving.poll(FORK_S):
                    raise TemplateLost("a forked process returned no result in time")
                result, error = pickle.loads(receiving.recv_bytes())  # noqa: S301 - from a process of our own
            except EOFError as lost:
                raise TemplateLost("a forked process ended without a result") from lost
            finally:
                process.kill()
                process.join()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


class _Popen(popen_forkserver.Popen):
    """A process that a template has forked. Its sentinel is a pidfd, which tells of its end even if the template, its
    parent, is gone."""

    method = "template"
    _fds: list[int]

    def _launch(self, process_obj: "ForkedProcess") -> None:
        """Raises TemplateLost."""
        prepared = spawn.get_preparation_data(process_obj.name)
        for name in ("init_main_from_name", "init_main_from_path"):  # an engine needs nothing of the replica's program
            prepared.pop(name, None)
        buffer = BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(prepared, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            set_spawning_popen(None)
        self._status, data = process_obj.template.fork(self._fds)
        self.sentinel = self._status
        # The process takes the end of what it reads for the end of this process.
        kept = [self._status, os.dup(data)]
        self.finalizer = util.Finalize(self, _close, kept)
        try:
            with open(data, "wb") as file:
                file.write(buffer.getbuffer())
            if not select.select([self._status], [], [], FORK_S)[0]:
                raise TemplateLost("the template process does not answer")
            self.pid = forkserver.read_signed(self._status)
            with suppress(ProcessLookupError):  # it has ended already: its exit status tells so
                self.sentinel = os.pidfd_open(self.pid)
                kept.append(self.sentinel)
        except (OSError, EOFError) as error:
            raise TemplateLost(f"the template process ended: {error}") from error

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            if not connection.wait([self.sentinel], 0 if flag == os.WNOHANG else None):
                return None
            self.returncode = UNKNOWN_STATUS
            with suppress(OSError, EOFError):  # the template is gone
                if select.select([self._status], [], [], EXIT_STATUS_S)[0]:
                    self.returncode = forkserver.read_signed(self._status)
        return self.returncode


class ForkedProcess(BaseProcess):
    """A process of a template, with the environment and the standard streams of the process that asked for it, which it
    does not outlive."""

    _start_method = "spawn"
    """Of the processes that it starts itself."""
    _environment: dict[str, str]
    _streams: list[Any]

    def __init__(self, template: Template, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.template = template

    @staticmethod
    def _Popen(process_obj: "ForkedProcess") -> _Popen:  # noqa: N802 - multiprocessing's name
        return _Popen(process_obj)

    def __getstate__(self) -> dict[str, Any]:
        popen: Any = get_spawning_popen()
        streams = [popen.DupFd(popen.duplicate_for_child(number)) for number in (1, 2)]
        return {**self.__dict__, "template": None, "_streams": streams, "_environment": dict(os.environ)}

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        for number, stream in enumerate(self._streams, start=1):
            os.dup2(stream.detach(), number)
        starter = multiprocessing.parent_process()
        assert starter is not None
        threading.Thread(target=_end_with, args=(starter.sentinel,), name="starter-watch", daemon=True).start()
        super().run()


def _tracker() -> int:
    """Where multiprocessing's tracker of shared resources listens; started if there is none."""
    descriptor = resource_tracker.getfd()
    assert descriptor is not None
    return descriptor


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)


def _end_with(starter: int) -> None:
    """Kills this process when the one that asked for it ends: Ray would kill a child of a worker, which this is not."""
    connection.wait([starter])
    os.kill(os.getpid(), signal.SIGKILL)


def _answer(function: bytes, sending: connection.Connection) -> None:
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    result, error = None, None
    try:
        result = pickle.loads(function)()  # noqa: S301 - from a process of our own
    except Exception as raised:
        error = RuntimeError(f"{type(raised).__name__}: {raised}")
    sending.send_bytes(pickle.dumps((result, error)))


def template_of(settings: EngineSettings, environment: Mapping[str, str] = os.environ) -> Template | None:
    """The node's template for an engine, started if there is none; does not wait until it has imported vLLM.

    None on a GPU, or if no template can be started. A process that asks again, for an engine with the same variables,
    gets the same one.

    Args:
        environment: the variables of this process, to which those of the engine are added.
    """
    if not runs_on_cpu():
        return None
    variables = engine_environment(settings)
    key = frozenset(variables.items())
    with _lock:
        if key not in _templates:
            try:
                _templates[key] = attach({**environment, **variables})
            except OSError as error:
                logger.warning("engines will start slower, without a template process: %s", error)
                _templates[key] = None
        return _templates[key]


def begin_templates(engines: Iterable[EngineSettings]) -> None:
    """Starts the node's templates for these engines, where they are missing, while this process goes on."""
    environment = dict(os.environ)  # before vLLM, imported meanwhile, adds to it

    def begin() -> None:
        for each in engines:
            template_of(each, environment)

    threading.Thread(target=begin, name="templates", daemon=True).start()


@contextmanager
def engines_forked_from(template: Template | None) -> Iterator[None]:
    """Inside, vLLM forks its engines, and the processes in which it looks at models, from the template."""
    if template is None:
        yield
        return
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils

    in_new_process = registry._run_in_subprocess

    def look_at_model(function: Callable[[], Result]) -> Result:
        try:
            return template.call(function)
        except TemplateLost:  # vLLM would take it for a fault of the model
            return in_new_process(function)  # type: ignore[no-any-return]

    try:
        with (
            patch.object(utils, "get_mp_context", lambda: template),
            patch.object(registry, "_run_in_subprocess", look_at_model),
        ):
            yield
    except TemplateLost:
        with _lock:
            _templates.clear()  # the next engine looks for another one
        raise


def attach(environment: Mapping[str, str], modules: Sequence[str] = MODULES) -> Template:
    """The template whose processes begin with this environment, started if there is none.

    Args:
        modules: what a template that is started imports.

    Raises:
        OSError: it cannot be started.
    """
    address = private_directory() / f"template-{_digest(environment)}"
    if len(os.fsencode(address)) > MAX_PATH_BYTES:
        raise OSError(f"the path of a socket may have {MAX_PATH_BYTES} bytes: {address}")
    fifo = address.with_suffix(".fifo")
    with _locked(address):
        with suppress(OSError):  # nobody reads: there is none
            return Template(address, os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        for path in (address, fifo):
            path.unlink(missing_ok=True)
        os.mkfifo(fifo, 0o600)
        both = os.open(fifo, os.O_RDWR)  # so that the template finds a writer from its beginning on
        try:
            _launch(address, environment, modules)
            return Template(address, os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        finally:
            os.close(both)


def _launch(address: Path, environment: Mapping[str, str], modules: Sequence[str]) -> None:
    """Starts a template and returns when it listens. Raises OSError if it does not."""
    path = os.pathsep.join(each for each in sys.path if each)
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", "deployments.engines.template", str(address), *modules],
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=FORK_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise OSError(str(error)) from error


@contextmanager
def _locked(address: Path) -> Iterator[None]:
    """Templates come and go one at a time. Raises TimeoutError when another one does neither."""
    deadline = time.monotonic() + FORK_S
    with open(address.with_name("template.lock"), "w") as lock:
        while True:
            with suppress(BlockingIOError):
                flock(lock, LOCK_EX | LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{lock.name} is held by another process")
            time.sleep(LOCK_POLL_S)
        yield


def _digest(environment: Mapping[str, str]) -> str:
    """Names the template: processes with equal digests may share it."""
    names = sorted(name for name in environment if name.startswith(READ_EARLY) and name != "PYTHONBREAKPOINT")  # Ray's
    early = [(name, environment[name]) for name in names]
    root = Path(__file__).parents[2]
    changed = [file.stat().st_mtime_ns for name in OURS for file in (root / name).rglob("*.py")]
    vllm = find_spec("vllm")
    changed += [os.stat(vllm.origin).st_mtime_ns] if vllm and vllm.origin else []
    return hashlib.sha256(repr((early, sys.executable, str(root), max(changed))).encode()).hexdigest()[:16]


def main(address: Path, modules: Sequence[str]) -> None:
    """Listens, detaches, imports the modules, and forks processes until nobody is left who might ask for one."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    alive = os.open(address.with_suffix(".fifo"), os.O_RDONLY | os.O_NONBLOCK)
    if os.fork():
        os._exit(0)
    os.setsid()
    nowhere, errors = os.open(os.devnull, os.O_RDWR), os.dup(2)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    gc.disable()
    for name in modules:
        with suppress(ImportError):
            import_module(name)
    if modules and can_compile():
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        pick_vec_isa()  # tries the processor's instructions in processes of its own, once for all engines
    os.dup2(errors, 2)  # for a process that fails before it has streams of its own
    with suppress(ImportError):
        import setproctitle

        setproctitle.getproctitle()  # finds where this is kept: a process with another environment could not
    gc.collect()
    gc.freeze()  # what is here stays: collections in forked processes leave its memory shared
    gc.enable()
    with suppress(SystemExit):
        forkserver.main(listener.detach(), alive, preload=[])
    with _locked(address), suppress(FileNotFoundError):
        fifo = address.with_suffix(".fifo")
        if os.path.sameopenfile(alive, os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)):  # not a successor's
            fifo.unlink()
            address.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
