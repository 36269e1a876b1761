"""What the interpreter lacks of Python is filled, or told from faults of the program; with the sandbox as shipped."""

import time
from collections.abc import AsyncIterator

import pytest

from deployments.sandbox import Limits, Sandbox
from deployments.sandbox.gaps import MODULES, public_names, with_wildcards
from deployments.sandbox.trials import try_program
from search.answers.checks import Check, Checks

LIMITS = Limits(seconds=20)
CALL = Checks(checks=(Check("f()"),))


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(workers=1) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    "source",
    [
        "from typing import *\nfrom collections import *\nx: List[int] = [1]\nprint(Counter(x)[1])",
        "from typing import Any\nfrom collections import *  # Counter\nprint(Counter([2])[2])",
        "if True:\n    from math import *\n    print(gcd(1, 2))",
        "from math import*;print(gcd(2, 3))",
        "x = 1; from math import *; print(gcd(x, 3))",
        "from\tmath  import\t*\nprint(floor(1.5))",
        "from itertools import *\nprint(len(list(chain([1]))))",
    ],
)
async def test_wildcard_imports_bind_what_the_interpreter_has(sandbox: Sandbox, source: str) -> None:
    [run] = await sandbox.run([source], LIMITS)
    assert (run.output, run.error) == ("1\n", None)


async def test_a_wildcard_import_binds_every_public_name_that_can_be_imported(sandbox: Sandbox) -> None:
    for module in MODULES:
        names = public_names(module)
        runs = await sandbox.run([f"from {module} import {name}" for name in names], LIMITS)
        there = [name for name, run in zip(names, runs, strict=True) if run.error is None]
        written = sandbox.with_wildcards(f"from {module} import *")
        assert written == (f"from {module} import {', '.join(there)}" if there else f"import {module}")


async def test_names_of_a_wildcard_import_stay_for_the_next_program(sandbox: Sandbox) -> None:
    checks = Checks("from math import *", (Check("f()", "3"),))
    assert (await try_program(sandbox, LIMITS, "def f(): return lcm(1, 3)", checks)).share == 1


def test_lines_stay_where_they_are_and_other_imports_as_they_are() -> None:
    source = "from math import *  # all\nfrom sympy import *\nfrom . import *\nfrom math import pi\nx = from_math\n"
    assert with_wildcards(source, {"math": ["e", "pi"]}).splitlines() == [
        "from math import e, pi  # all",
        "import sympy",
        "from . import *",
        "from math import pi",
        "x = from_math",
    ]


@pytest.mark.parametrize(
    "line", ["from math import*\n", ";from", "; " * 8, "from " * 3, "from a.b", "from math import " * 2]
)
def test_wildcards_are_found_in_linear_time(line: str) -> None:
    began = time.process_time()
    with_wildcards(line * (200_000 // len(line)), {"math": ["pi"] * 60})
    assert time.process_time() - began < 5  # it takes 0.1 s; quadratic time would be minutes


@pytest.mark.parametrize(
    ("program", "lacks"),
    [
        # Python would run these.
        ("import heapq\ndef f(): return heapq.nsmallest(1, [1])", True),
        ("from collections.abc import Iterable\ndef f(): return 1", True),
        ("from functools import cmp_to_key\ndef f(): return 1", True),
        ("import re\ndef f(): return re.subn('a', 'b', 'c')", True),
        ("def f(): return (2.0).is_integer()", True),
        ("def f(): return sorted(['b'], key=str.lower)", True),
        ("def f(): return 'a'.translate(str.maketrans('a', 'b'))", True),
        ("def f(): return callable(f)", True),
        ("from collections import *\ndef f(): return OrderedDict()", True),
        ("class A: pass\nclass B(A): pass\ndef f(): return 1", True),
        ("def f():\n    x = [1]\n    del x[0]", True),
        ("def f():\n    try:\n        raise ValueError('a', 1)\n    except ValueError:\n        return 1", True),
        ("def f(): return KeyError(1).args[0]", True),
        ("def f(): return next((x for x in [1] if x), None)", True),
        ("import re\ndef f(): return re.sub('a', lambda found: 'b', 'a')", True),
        ("from dataclasses import dataclass\n@dataclass(order=True)\nclass A:\n    a: int\ndef f(): return 1", True),
        ("def f(): return f.__doc__", True),
        # Python would fail with these, too.
        ("import math\ndef f(): return math.square(2)", False),
        ("from math import square\ndef f(): return 1", False),
        ("import numpy\ndef f(): return 1", False),
        ("from numpy import *\ndef f(): return 1", False),
        ("def f(): return OrderedDict()", False),
        ("def f(): return 'a'.reverse()", False),
        ("class A: pass\ndef f(): return A().lower()", False),
        ("def f(): return input()", False),
        ("def f(): return undefined", False),
        ("def f(): raise NotImplementedError('The solution is missing')", False),
        ("def f(): return [1][2]", False),
        ("def f(): raise ValueError('a')", False),
        ("def f(): raise RuntimeError", False),
        ("def f(): return next([1])", False),
        ("def f(): return f.steps", False),
    ],
)
async def test_what_python_would_run_is_told_from_what_it_would_not(
    sandbox: Sandbox, program: str, lacks: bool
) -> None:
    trial = await try_program(sandbox, LIMITS, program, CALL)
    assert trial.outcomes[0].error
    assert trial.lacking == lacks
