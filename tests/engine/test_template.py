"""Engines are forked from a template process: the same engines, and every process ends when it should."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deployments.engines import template
from deployments.engines.environment import engine_environment
from deployments.engines.generation import GenerationEngine
from deployments.engines.settings import GeneratorSettings
from deployments.engines.template import Template, TemplateLost, attach
from search.ports import Branch, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition
from tests.engine.conftest import quiet, stop

GONE_S = 30.0
PROMPT = tuple(range(20, 60))
OWNER = """
import os, sys, time
from deployments.engines.template import attach
template = attach(os.environ, modules=())
process = template.Process(target=time.sleep, args=(600,))
process.start()
print(process.pid, flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + GONE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def server_of(process: int) -> psutil.Process:
    """The template that has forked a process."""
    parent = psutil.Process(process).parent()
    assert parent is not None
    assert template.__name__ in parent.cmdline()
    return parent


@pytest.fixture(scope="module")
def shared() -> Template:
    """The template from which the engines of other tests are forked, too: another one would import vLLM again."""
    found = template.template_of(GeneratorSettings())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def directory(shared: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of templates that no other test uses."""
    path = tmp_path_factory.mktemp("templates")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(path))
        yield path


@pytest.fixture(scope="module")
def own(directory: Path) -> Iterator[Template]:
    """A template that no other test uses, with no more of vLLM than a call needs."""
    yield (found := attach({**os.environ, "TMPDIR": str(directory)}, modules=("vllm.plugins",)))
    os.close(found._alive)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What engines log, whether or not another test has changed how loggers propagate."""
    template.logger.addHandler(caplog.handler)
    yield caplog
    template.logger.removeHandler(caplog.handler)


async def tokens_of(settings: GeneratorSettings) -> tuple[list[tuple[int, ...]], psutil.Process]:
    """Eight sampled solutions of a new engine, and the parent of its process."""
    engine = GenerationEngine(settings)
    with quiet():
        await engine.start()
    manager = engine._running.engine.engine_core.resources.engine_manager
    parent = psutil.Process(manager.processes[0].pid).parent()
    assert parent is not None
    expansion = ExpandItem((), PROMPT, tuple(Branch(index, index, 64) for index in range(8)))
    request = ExpandRequest("search", (expansion,), Sampling(1.0), StopCondition.SOLUTION, Lane.DEMAND, 60.0)
    children = [child async for group in engine.expand(request) for child in group.children]
    written = {child.index: tuple(token for step in child.steps for token in step.token_ids) for child in children}
    await stop(engine)
    return [written[index] for index in range(8)], parent


@pytest.mark.long
async def test_a_forked_engine_writes_what_one_does_that_is_spawned_because_the_template_does_not_answer(
    generator_model: str,
    shared: Template,
    own: Template,
    monkeypatch: pytest.MonkeyPatch,
    warnings: pytest.LogCaptureFixture,
) -> None:
    settings = GeneratorSettings(model=generator_model, max_model_len=256)
    monkeypatch.setattr("deployments.engines.lifecycle.template_of", lambda _: shared)
    forked, parent = await tokens_of(settings)
    assert template.__name__ in parent.cmdline()

    process = own.Process(target=time.sleep, args=(600,))
    process.start()
    server = server_of(process.pid)
    server.suspend()
    monkeypatch.setattr(template, "FORK_S", 0.5)
    monkeypatch.setattr(template, "_templates", {})  # emptied when a template does not answer; later tests need theirs
    monkeypatch.setattr("deployments.engines.lifecycle.template_of", lambda _: own)
    spawned, parent = await tokens_of(settings)
    server.resume()
    assert parent.pid == os.getpid()
    assert "the template process does not answer" in warnings.text
    assert forked == spawned
    process.kill()
    process.join()


def test_a_forked_engine_has_its_variables_from_its_first_instruction(shared: Template) -> None:
    process = shared.Process(target=time.sleep, args=(600,))
    process.start()
    server = server_of(process.pid)
    # With a second thread, a lock might be held for ever in a forked process.
    assert server.num_threads() == 1
    maps = {Path(entry.path).name for entry in psutil.Process(process.pid).memory_maps()}
    preloaded = engine_environment(GeneratorSettings()).get("LD_PRELOAD", "").split()
    assert {Path(library).name.split(".so")[0] for library in preloaded} <= {name.split(".so")[0] for name in maps}
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_a_call_returns_its_result_or_its_error(shared: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANYAN_TEST", "of this process")
    assert shared.call(lambda: os.environ["BANYAN_TEST"]) == "of this process"
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        shared.call(lambda: 1 % 0)
    with pytest.raises(TemplateLost, match="without a result"):
        shared.call(lambda: os._exit(3))


def test_a_process_that_has_ended_before_it_is_watched_is_not_taken_for_the_templates_end(
    shared: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has no pidfd for a process that its parent has waited for."""

    def pidfd_open(pid: int) -> int:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    process = shared.Process(target=os._exit, args=(3,))
    process.start()
    process.join(GONE_S)
    assert process.exitcode == 3
    with pytest.raises(TemplateLost, match="without a result"):
        shared.call(lambda: os._exit(3))


def test_without_a_directory_of_ones_own_there_is_no_template(
    generator_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"banyan-{os.getuid()}").mkdir(mode=0o755)
    monkeypatch.setattr(template, "_templates", {})
    assert template.template_of(GeneratorSettings(model=generator_model)) is None
    assert "must belong to this user and be closed to others (mode 0700)" in warnings.text


def test_a_process_outlives_its_template(own: Template, directory: Path) -> None:
    process = own.Process(target=time.sleep, args=(600,))
    process.start()
    server_of(process.pid).kill()
    until(lambda: is_gone(psutil.Process(process.pid).ppid()) or psutil.Process(process.pid).ppid() == 1, "not killed")
    assert process.is_alive()
    with pytest.raises(TemplateLost, match="no template"):
        own.fork([])
    process.terminate()
    process.join(GONE_S)
    assert not process.is_alive()
    assert process.exitcode == template.UNKNOWN_STATUS
    other = attach({**os.environ, "TMPDIR": str(directory)}, modules=())
    process = other.Process(target=int)
    process.start()
    process.join(GONE_S)
    assert process.exitcode == 0
    os.close(other._alive)


def test_processes_of_a_user_share_a_template_which_ends_with_the_last(tmp_path: Path) -> None:
    owners = [
        subprocess.Popen(
            [sys.executable, "-c", OWNER],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            cwd=Path(template.__file__).parents[2],
        )
        for _ in range(2)
    ]
    forked = [int(owner.stdout.readline()) for owner in owners if owner.stdout]
    server = server_of(forked[0])
    assert server_of(forked[1]) == server
    for owner, process in zip(owners, forked, strict=True):
        assert not is_gone(server.pid)
        assert not is_gone(process)
        owner.kill()
        owner.communicate()
        until(lambda process=process: is_gone(process), "a forked process outlives the one that asked for it")
    until(lambda: is_gone(server.pid), "the template is left")
    until(lambda: [path.name for path in tmp_path.glob("banyan-*/*")] == ["template.lock"], "files are left")
