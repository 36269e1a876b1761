"""``search`` as a library: its exports exist, and the example in its docstring runs."""

import subprocess
import sys
import textwrap

import search


def test_all_exports_exist() -> None:
    assert sorted(search.__all__) == sorted(set(search.__all__))
    assert all(getattr(search, name) is not None for name in search.__all__)


def test_the_example_runs() -> None:
    assert search.__doc__ is not None
    _, _, indented = search.__doc__.partition("::\n")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(indented)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("heads 8\n", "")
