"""How glibc's allocator serves the processes that store KV.

Chunks of KV come and go by the thousand. glibc learns from the first large one that it need not map such sizes by
themselves, and keeps what they leave between smaller objects: 2.9 MB a minute for an engine under load, with no Python
object more than before.
"""

import os

_STEADY = {
    # From this size on a piece of memory is mapped by itself and returned when it is freed. Set, it is not learned.
    "MALLOC_MMAP_THRESHOLD_": str(128 << 10),
    # An arena for each of LMCache's threads would keep holes of its own.
    "MALLOC_ARENA_MAX": "2",
}


def malloc_environment() -> dict[str, str]:
    """For a process that is about to start; what the operator set stays as it is."""
    return {name: os.environ.get(name, value) for name, value in _STEADY.items()}
