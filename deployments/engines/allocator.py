"""The memory allocator of engine processes, which is not that of the other processes (``environment.sh``).

A forward pass on a CPU allocates and frees tensors of megabytes for every layer. An allocator that returns each of them
to the operating system makes the engine wait for page faults; one that keeps them makes a controller, with millions of
small objects, grow for ever. Hence: what ``environment.sh`` says for all processes, and this for engines.

Beam search n = 16, m = 4 with 16 searches in flight on two cores, problems per second and resident memory of the
generator's engine, by the allocator of the engines, in one session:

=========================================  ==============  ============  ==============
allocator                                  embedded pair   heavy pair    resident (MB)
=========================================  ==============  ============  ==============
glibc, mappings from 128 KiB (controller)  3.8             0.153         1211
jemalloc, 30 s before memory is returned   not measured    0.165         1247
mimalloc                                   5.2 to 5.4      0.274         1313
glibc, mappings from 1 GiB                 5.4             0.250         2509
tcmalloc                                   4.9 to 6.5      0.283         1834
=========================================  ==============  ============  ==============
"""

import ctypes
import os
from ctypes.util import find_library
from functools import cache

KEEP = 1 << 30
"""Bytes. glibc returns only larger allocations to the operating system, and free memory only beyond this."""
GLIBC = {"MALLOC_MMAP_THRESHOLD_": str(KEEP), "MALLOC_TRIM_THRESHOLD_": str(KEEP)}
LIBRARIES = ("tcmalloc_minimal", "tcmalloc")
"""By preference. The Debian package of the first is libtcmalloc-minimal4."""


def allocator_environment(preload: bool) -> dict[str, str]:
    """Environment variables that give an engine its allocator: tcmalloc where it is installed, else glibc's.

    Args:
        preload: whether tcmalloc may be used; measured on CPUs only.
    """
    preloaded = os.environ.get("LD_PRELOAD", "")
    # An operator's own choice stays; glibc's variables mean nothing to another allocator.
    if not preload or "malloc" in preloaded or (library := tcmalloc()) is None:
        return GLIBC
    # Without the second it reports every allocation of a gigabyte, such as KV memory, on stderr.
    return {**GLIBC, "LD_PRELOAD": f"{library} {preloaded}".strip(), "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "0"}


def release_free_memory() -> None:
    """Returns the free memory of this process to the operating system.

    Engines do so once, after their warm-up, which needs far more than the steps of searches: the heavy pair's reward
    model then has 2.1 GB resident after some searches instead of 4.6 GB.
    """
    process = ctypes.CDLL(None)
    for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):
        if (function := getattr(process, name, None)) is not None:
            function(*arguments)


@cache
def tcmalloc() -> str | None:
    """The name under which the dynamic linker finds tcmalloc; None if it is not installed."""
    return next(filter(None, map(find_library, LIBRARIES)), None)
