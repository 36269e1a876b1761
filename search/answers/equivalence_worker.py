"""Worker process that parses answers with math-verify and evaluates them with sympy: reads one answer per line, writes
its CPU time and its readings.

A script, started by ``search.answers.equivalence``. A reading is a value as JSON: ``["number", "1.414..."]``,
``["decimal", "0.5"]``, ``["tuple", value...]`` and so on (see ``search.answers.readings``). An expression with
variables is represented by its values at fixed points. The limit per answer is CPU time, so that equivalence does not
depend on the machine's load; math-verify's own limits are wall clock. The process ends when its stdin closes, so it
never outlives its parent.
"""

import contextlib
import hashlib
import json
import os
import resource
import signal
import sys
import time
from functools import lru_cache
from typing import Any

CPU_S = 0.5
"""CPU time per answer after which a signal handler interrupts it."""
KILLED_AFTER_CPU_S = 1.0
"""CPU time per answer after which the process is killed: a signal handler cannot interrupt a power of huge integers."""
MEMORY_BYTES = 4 << 30
DIGITS = 40
"""Significant digits of a value."""
MAX_MAGNITUDE = 1000
"""Largest decimal exponent of a number. A larger number is compared as text, because computing with it is too slow."""
POINTS = ((1, 1), (-8, 5), (30, 30), (1000, 1000))
"""Evaluation points of variables: start and width of the interval of each. Both signs, so that |x| differs from x."""

Value = list[Any]


class OutOfTime(BaseException):
    """The CPU time of an answer is used up. Not an ``Exception``, because sympy and math-verify catch those."""


class Unreadable(Exception):
    """The answer has no value: it is text, or undefined."""


def out_of_time(signum: int, frame: object) -> None:
    raise OutOfTime


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, out_of_time)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    # Output that a library prints to stdout must not be read as a reply.
    os.dup2(2, 1)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    readings_of(r"\sqrt{x}+1")  # Warm-up: libraries load modules at first use.
    replies.write("ready\n")
    for line in sys.stdin:
        replies.write(json.dumps(bounded_readings(line)) + "\n")


def bounded_readings(line: str) -> tuple[float, list[Value] | None]:
    """The CPU time and the readings of the answer in ``line`` (JSON); None if it ran out of time."""
    seconds, readings = CPU_S, None
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_VIRTUAL, KILLED_AFTER_CPU_S)
        seconds, readings = timed_readings(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
    except OutOfTime:
        pass
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return seconds, readings


@lru_cache(maxsize=1024)
def timed_readings(answer: str) -> tuple[float, list[Value]]:
    """The CPU time of reading ``answer`` and its readings, empty if it has none. Both are cached: whether an answer was
    read before must not decide which answers a grouping has time for."""
    began = time.process_time()
    readings: list[Value] = []
    # No answer may end the worker by an exception.
    with contextlib.suppress(Exception):
        readings = readings_of(answer)
    return time.process_time() - began, readings


def readings_of(answer: str) -> list[Value]:
    """The values that ``answer`` may have, the likelier first. ``y = 2x`` is ``2x``, or that equation; ``1, 2`` is a
    set, or a tuple; ``x = 1, x = 2`` is the set of 1 and 2; ``x = 1, y = 2`` is two equations, or a tuple."""
    from latex2sympy2_extended.sets import FiniteSet
    from math_verify import LatexExtractionConfig, parse
    from math_verify.grader import is_assignment_relation
    from sympy import Eq, Tuple

    # Parse all of it or nothing: by default math-verify extracts any number from text that it cannot parse as a whole.
    whole = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)
    parsed = parse(f"\\boxed{{{answer}}}", [whole], parsing_timeout=None)
    if not parsed:
        return []
    expression = parsed[0]
    if isinstance(expression, str):
        return [["text", expression]]
    if is_assignment_relation(expression):
        name, right = assignment(expression)
        return [value_of(right), *optional(Eq(name, right, evaluate=False))]
    if not isinstance(expression, FiniteSet):
        return [value_of(expression)]
    members = expression._unsorted_args
    if not all(map(is_assignment_relation, members)):
        return [value_of(expression), *optional(Tuple(*members))]
    names, rights = zip(*map(assignment, members), strict=True)
    if len(set(names)) == 1:
        return [value_of(FiniteSet(*rights))]
    return [value_of(expression), *optional(Tuple(*rights))]


def assignment(relation: Any) -> tuple[Any, Any]:
    """The name and the value of a relation such as ``y = f(x) = 2x``: its first and its last part."""
    from math_verify.grader import take_first_relation, take_last_relation

    return take_first_relation(relation).lhs, take_last_relation(relation).rhs


def optional(expression: Any) -> list[Value]:
    """The value of ``expression`` if it has one."""
    with contextlib.suppress(Exception):
        return [value_of(expression)]
    return []


def value_of(expression: Any) -> Value:
    """The value of an expression that math-verify parsed.

    Raises:
        Unreadable: it has no value.
    """
    from math_verify.grader import is_relation, unwrap_fcs
    from sympy import Basic, Expr, MatrixBase, Set, Tuple
    from sympy.core.function import AppliedUndef

    if isinstance(expression, MatrixBase):
        return ["matrix", *expression.shape, *map(value_of, expression.doit())]
    if isinstance(expression, Basic) and expression.has(AppliedUndef):
        expression = unwrap_fcs(expression)
    if isinstance(expression, Tuple):
        return ["tuple", *map(value_of, expression)]
    if isinstance(expression, Set):
        return set_value(expression)
    if is_relation(expression):
        return relation_value(expression)
    if isinstance(expression, Expr):
        return scalar_value(expression)
    raise Unreadable


def set_value(given: Any) -> Value:
    from sympy import FiniteSet, Interval, Reals, Union, oo

    evaluated = given.doit()
    if isinstance(evaluated, FiniteSet):
        # Duplicates in a set do not count.
        members = sorted({json.dumps(value_of(member)) for member in evaluated.args})
        return json.loads(members[0]) if len(members) == 1 else ["set", *map(json.loads, members)]
    if evaluated == Reals or evaluated == Interval(-oo, oo):
        return ["reals"]
    if isinstance(evaluated, Interval):
        ends = [value_of(evaluated.start), value_of(evaluated.end)]
        # (1, 2) may also be a point; its text is the same.
        if evaluated.left_open and evaluated.right_open:
            return ["tuple", *ends]
        return ["interval", bool(evaluated.left_open), bool(evaluated.right_open), *ends]
    if isinstance(evaluated, Union):
        return ["union", *sorted(map(value_of, evaluated.args), key=json.dumps)]
    return ["other", str(evaluated)]


def relation_value(relation: Any) -> Value:
    """The value of a relation. A linear inequality in one unknown is the set of its solutions. Any other relation is
    the difference of its two sides at the points, up to a factor: equations are compared, not solved."""
    from sympy import Eq, Ge, Gt, Lt, Ne
    from sympy.core.relational import Relational

    parts_of_it = relation.atoms(Relational)
    if len(relation.free_symbols) == 1 and not relation.has(Eq, Ne) and all(map(is_linear, parts_of_it)):
        return set_value(relation.as_set())
    if not isinstance(relation, Relational):
        return ["all", *sorted(map(value_of, relation._unsorted_args), key=json.dumps)]
    left, right = relation.lhs, relation.rhs
    if isinstance(relation, (Ge, Gt)):
        left, right = right, left
    difference = left - right
    values = [at_point(difference, point)[0] for point in range(len(POINTS))]
    factor = values[0]
    if not factor:
        raise Unreadable
    if isinstance(relation, (Eq, Ne)):
        return ["equal" if isinstance(relation, Eq) else "unequal", *(str_of(value / factor) for value in values[1:])]
    strict = isinstance(relation, (Gt, Lt))
    return ["less" if strict else "at most", *(str_of(value / abs(factor)) for value in values)]


def is_linear(relation: Any) -> bool:
    """Whether a relation in one unknown is linear in it."""
    return not (relation.lhs - relation.rhs).diff(*relation.free_symbols).free_symbols


def scalar_value(expression: Any) -> Value:
    from sympy import Float, Rational, oo, simplify

    if expression in (oo, -oo):
        return ["infinity", str(expression)]
    floats = expression.atoms(Float)
    exact = expression.xreplace({each: Rational(str(each)) for each in floats}).doit()
    if exact.free_symbols and constant(exact):
        exact = simplify(exact)
    if not exact.free_symbols:
        return number_value(exact, "decimal" if floats else "number")
    return ["function", *(text for point in range(len(POINTS)) for text in map(str_of, at_point(exact, point)))]


def constant(expression: Any) -> bool:
    """Whether the value of ``expression`` does not depend on its variables."""
    first, *others = (tuple(map(str_of, at_point(expression, point))) for point in range(len(POINTS)))
    return all(other == first for other in others)


def number_value(number: Any, kind: str) -> Value:
    if number.is_Rational:
        return [kind, str(number)]
    real, imaginary = parts(number)
    if real and abs(real._mpf_[2] + real._mpf_[3]) > MAX_MAGNITUDE * 3.33:
        return ["other", str_of(real), str_of(imaginary)]
    return ["complex", str_of(real), str_of(imaginary)] if imaginary else [kind, str_of(real)]


def at_point(expression: Any, point: int) -> tuple[Any, Any]:
    """The real and the imaginary part of ``expression`` with each variable at its value for that point."""
    from sympy import Float

    values = {}
    for symbol in expression.free_symbols:
        digest = hashlib.blake2b(f"{point} {symbol.name}".encode(), digest_size=8).digest()
        start, width = POINTS[point]
        values[symbol] = Float(start, 2 * DIGITS) + Float(width, 2 * DIGITS) * int.from_bytes(digest) / 2**64
    return parts(expression.xreplace(values).doit())


def parts(number: Any) -> tuple[Any, Any]:
    from sympy import Float, N

    found = N(number, DIGITS, chop=True).as_real_imag()
    if not all(part.is_Number and part.is_finite for part in found):
        raise Unreadable
    return Float(found[0], DIGITS), Float(found[1], DIGITS)


def str_of(number: Any) -> str:
    """``number`` with 30 significant digits: rounding errors of the computation only affect later digits."""
    from mpmath import libmp

    return str(libmp.to_str(number._mpf_, 30, strip_zeros=True))


if __name__ == "__main__":
    main()
