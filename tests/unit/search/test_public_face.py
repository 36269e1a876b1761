"""``search`` as a library: its exports exist, and the examples in docstring and README run."""

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import search


def test_all_exports_exist() -> None:
    assert sorted(search.__all__) == sorted(set(search.__all__))
    assert all(getattr(search, name) is not None for name in search.__all__)


def of_the_docstring() -> str:
    assert search.__doc__ is not None
    _, _, indented = search.__doc__.partition("::\n")
    return textwrap.dedent(indented)


def of_the_readme() -> str:
    readme = Path(__file__).parents[3] / "README.md"
    [program] = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    return program


@pytest.mark.parametrize("program", [of_the_docstring, of_the_readme])
def test_the_example_runs(program: Callable[[], str]) -> None:
    done = subprocess.run([sys.executable, "-c", program()], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("heads 8\n", "")
