"""The memory allocator of engine processes. That of all other processes is set in ``environment.sh``.

A forward pass on a CPU allocates and frees tensors of megabytes for every layer. An allocator that returns each of them
to the operating system makes the engine wait for page faults; one that keeps them makes a controller, with millions of
small objects, grow for ever. Hence ``environment.sh`` sets the first kind for all processes, and this module the second
kind for engines.

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

KEEP_BYTES = 1 << 30
"""Free memory that glibc keeps. It returns larger allocations, and free memory beyond this, to the operating system."""
GLIBC = {"MALLOC_MMAP_THRESHOLD_": str(KEEP_BYTES), "MALLOC_TRIM_THRESHOLD_": str(KEEP_BYTES)}
LIBRARIES = ("tcmalloc_minimal", "tcmalloc")
"""tcmalloc's library names, the preferred one first. Its Debian package is libtcmalloc-minimal4."""


def allocator_environment(preload: bool) -> dict[str, str]:
    """Environment variables that give an engine its allocator: tcmalloc where it is installed, else glibc's.

    Args:
        preload: whether tcmalloc may be used; measured on CPUs only.
    """
    preloaded = os.environ.get("LD_PRELOAD", "")
    # An allocator that the operator preloads stays; it ignores glibc's variables.
    if not preload or "malloc" in preloaded or (library := tcmalloc()) is None:
        return GLIBC
    # At the default threshold tcmalloc reports every allocation of a gigabyte, such as KV memory, on stderr.
    return {**GLIBC, "LD_PRELOAD": f"{library} {preloaded}".strip(), "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "0"}


def release_free_memory() -> None:
    """Returns the free memory of this process to the operating system.

    Called once in every engine, after its warm-up, which needs far more memory than the steps of searches: the heavy
    pair's reward model then has 2.1 GB resident after some searches instead of 4.6 GB.
    """
    process = ctypes.CDLL(None)
    for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):
        if (function := getattr(process, name, None)) is not None:
            function(*arguments)


@cache
def tcmalloc() -> str | None:
    """The name under which the dynamic linker finds tcmalloc; None if it is not installed."""
    return next(filter(None, map(find_library, LIBRARIES)), None)
