"""Worker process that parses formulas with math-verify and evaluates them with sympy: reads the forms of one answer per
line (see ``search.answers.readings``), writes its CPU time and the forms without formulas.

A script, started by ``search.answers.equivalence``. An expression with variables is represented by its values at fixed
points. The limit per answer is CPU time, so that equivalence does not depend on the machine's load; math-verify's own
limits are wall clock. The process ends when its stdin closes, so it never outlives its parent.
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

Form = list[Any]


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
    evaluated_forms(json.dumps([["latex", r"\sqrt{x}+1", ""]]))  # Warm-up: libraries load modules at first use.
    replies.write("ready\n")
    for line in sys.stdin:
        replies.write(json.dumps(bounded_forms(line)) + "\n")


def bounded_forms(line: str) -> tuple[float, list[Form] | None]:
    """The CPU time of evaluating the forms in ``line`` and the evaluated forms; None if the time ran out."""
    seconds, forms = CPU_S, None
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        signal.setitimer(signal.ITIMER_VIRTUAL, KILLED_AFTER_CPU_S)
        seconds, forms = timed_forms(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
    except OutOfTime:
        pass
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return seconds, forms


@lru_cache(maxsize=1024)
def timed_forms(line: str) -> tuple[float, list[Form]]:
    """The CPU time of evaluating the forms in ``line`` and the evaluated forms, empty if none has a value. Both are
    cached: whether an answer was read before must not decide which answers a grouping has time for."""
    began = time.process_time()
    forms: list[Form] = []
    # No answer may end the worker by an exception.
    with contextlib.suppress(Exception):
        forms = evaluated_forms(line)
    return time.process_time() - began, forms


def evaluated_forms(line: str) -> list[Form]:
    """The evaluated forms in ``line`` (JSON); those after the first that have no value are left out."""
    forms: list[Form] = []
    for form in json.loads(line):
        with contextlib.suppress(Exception):
            value = evaluated(form)
            if not forms or value[0] != "text":
                forms.append(value)
    return forms


def evaluated(form: Any) -> Form:
    """``form`` with its formulas as values.

    Raises:
        Unreadable: it combines formulas that are no sets.
    """
    match form:
        case ["latex", formula, text]:
            with contextlib.suppress(Exception):
                return value_of(parsed(formula))
            return ["text", text]
        case ["or" | "and" as connective, *formulas]:
            return combined(connective, [parsed(formula) for _, formula, *_ in formulas])
        case ["set", *members]:
            # The two values of "\\pm 2" are members of the list in which it stands.
            return ["set", *(value for member in members for value in values_of_member(member))]
        case ["tuple", first, second]:
            return interval_value(True, True, evaluated(first), evaluated(second))
        case ["interval", left_open, right_open, first, second]:
            return interval_value(left_open, right_open, evaluated(first), evaluated(second))
        case [str(), *_]:
            return [evaluated(part) if isinstance(part, list) else part for part in form]
        case _:
            raise Unreadable


def values_of_member(member: Any) -> list[Form]:
    value = evaluated(member)
    return value[1:] if member[0] == "latex" and value[0] == "set" else [value]


def parsed(formula: str) -> Any:
    """The expression of a formula.

    Raises:
        Exception: math-verify cannot parse all of it.
    """
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
    from math_verify.parser import parse_latex_cached
    from sympy import I, Product, Sum

    # Units were read before; math-verify's own settings would take variables at the end for more of them.
    normalization = NormalizationConfig(malformed_operators=True, nits=True, boxed="none")
    expression = parse_latex_cached(normalize_latex(formula, normalization))
    # math-verify writes all symbols in lower case, and leaves i a variable.
    units = [symbol for symbol in expression.free_symbols if symbol.name == "i" and "I" not in formula]
    return expression.xreplace(dict.fromkeys(units, I)) if units and not expression.has(Sum, Product) else expression


def combined(connective: str, parts: list[Any]) -> Form:
    """The union of sets and of inequalities' solutions, or their intersection."""
    from sympy import Intersection, Set, Union

    sets = [part if isinstance(part, Set) else solutions(part) for part in parts]
    return set_value((Union if connective == "or" else Intersection)(*sets))


def value_of(expression: Any) -> Form:
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


def set_value(given: Any) -> Form:
    from sympy import FiniteSet, Interval, Reals, Union

    found = given.doit()
    if isinstance(found, FiniteSet):
        # Duplicates in a set do not count.
        members = sorted({json.dumps(value_of(member)) for member in found.args})
        return json.loads(members[0]) if len(members) == 1 else ["set", *map(json.loads, members)]
    if found == Reals:
        return ["reals"]
    if isinstance(found, Interval):
        return interval_value(bool(found.left_open), bool(found.right_open), value_of(found.start), value_of(found.end))
    if isinstance(found, Union):
        return ["union", *sorted(map(value_of, found.args), key=json.dumps)]
    return ["other", str(found)]


def interval_value(left_open: bool, right_open: bool, start: Form, end: Form) -> Form:
    """The value of an interval. An open one is a tuple: (1, 2) may also be a point, and its text is the same."""
    infinite = [end[0] == "infinity" for end in (start, end)]
    if all(infinite) and start != end:
        return ["reals"]
    left_open, right_open = left_open or infinite[0], right_open or infinite[1]
    return ["tuple", start, end] if left_open and right_open else ["interval", left_open, right_open, start, end]


def relation_value(relation: Any) -> Form:
    """The value of a relation. A linear inequality in one unknown is the set of its solutions. Any other relation is
    the difference of its two sides at the points, up to a factor: equations are compared, not solved."""
    from sympy import Eq, Ge, Gt, Lt, Ne
    from sympy.core.relational import Relational

    with contextlib.suppress(Unreadable):
        return set_value(solutions(relation))
    if not isinstance(relation, Relational):
        return ["all", *sorted(map(value_of, relation._unsorted_args), key=json.dumps)]
    left, right = relation.lhs, relation.rhs
    if isinstance(relation, (Ge, Gt)):
        left, right = right, left
    difference = left - right
    values = [at_point(difference, point)[0] for point in range(len(POINTS))]
    factor = values[0]
    if not any(values) and isinstance(relation, Eq):
        return ["identity", scalar_value(left)]
    if not factor:
        raise Unreadable
    if isinstance(relation, (Eq, Ne)):
        return ["equal" if isinstance(relation, Eq) else "unequal", *(str_of(value / factor) for value in values[1:])]
    strict = isinstance(relation, (Gt, Lt))
    return ["less" if strict else "at most", *(str_of(value / abs(factor)) for value in values)]


def solutions(relation: Any) -> Any:
    """The set of the solutions of linear inequalities in one unknown.

    Raises:
        Unreadable: it is something else.
    """
    from math_verify.grader import is_relation
    from sympy import Eq
    from sympy.core.relational import Relational

    if not is_relation(relation) or len(relation.free_symbols) != 1 or relation.has(Eq):
        raise Unreadable
    if not all(map(is_linear, relation.atoms(Relational))):
        raise Unreadable
    return relation.as_set()


def is_linear(relation: Any) -> bool:
    """Whether a relation in one unknown is linear in it."""
    return not (relation.lhs - relation.rhs).diff(*relation.free_symbols).free_symbols


def scalar_value(expression: Any) -> Form:
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


def number_value(number: Any, kind: str) -> Form:
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
