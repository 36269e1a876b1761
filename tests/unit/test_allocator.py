"""The memory allocator of an engine's process."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from deployments.engines import allocator
from deployments.engines.allocator import GLIBC, allocator_environment, tcmalloc

TCMALLOC = "libtcmalloc_minimal.so.4"


@pytest.fixture(autouse=True)
def nothing_preloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    tcmalloc.cache_clear()
    yield
    tcmalloc.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    monkeypatch.setattr(allocator, "find_library", lambda library: name if library == "tcmalloc_minimal" else None)


def test_tcmalloc_is_preloaded_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, TCMALLOC)
    assert allocator_environment(preload=True)["LD_PRELOAD"] == TCMALLOC


def test_without_tcmalloc_glibc_keeps_large_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert allocator_environment(preload=True) == GLIBC


def test_an_engine_on_a_gpu_uses_glibcs_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, TCMALLOC)
    assert allocator_environment(preload=False) == GLIBC


def test_an_allocator_set_by_the_operator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, TCMALLOC)
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert "LD_PRELOAD" not in allocator_environment(preload=True)


def test_other_preloaded_libraries_stay_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, TCMALLOC)
    monkeypatch.setenv("LD_PRELOAD", "libiomp5.so")
    assert allocator_environment(preload=True)["LD_PRELOAD"] == f"{TCMALLOC} libiomp5.so"


@pytest.mark.skipif(tcmalloc() is None, reason="tcmalloc is not installed")
def test_a_process_with_this_environment_uses_tcmalloc() -> None:
    mapped = "print('tcmalloc' in open('/proc/self/maps').read())"
    done = subprocess.run(
        [sys.executable, "-c", mapped], env=allocator_environment(preload=True), capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"True\n", b"")
