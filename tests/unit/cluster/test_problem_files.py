"""An invalid line is reported with its number and reason, and is skipped or refused as configured."""

import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.evaluation.problem_files import MAX_LINE_BYTES, EvalProblem, OnBadLine, ProblemFileError, read_problems
from cluster.jobs.formats import InputKind
from cluster.jobs.inputs import look_at
from cluster.jobs.validation import checking
from deployments.store import LineError
from search.tools.fair_threads import result_of

GOOD = b'{"problem": "1 + 1?", "answer": "2", "level": 1, "unique_id": "a/1"}'

BAD = {
    "no JSON": (b"{", "not JSON"),
    "a list": (b"[1]", "not a list"),
    "null": (b"null", "not null"),
    "no problem": (b'{"answer": "2"}', "no 'problem'"),
    "no answer": (b'{"problem": "1 + 1?"}', "no 'answer'"),
    "empty problem": (b'{"problem": "  ", "answer": "2"}', "'problem' is empty"),
    "empty answer": (b'{"problem": "1 + 1?", "answer": ""}', "'answer' is empty"),
    "a number for a problem": (b'{"problem": 1, "answer": "2"}', "'problem' must be text, not a number"),
    "a boolean for an answer": (
        b'{"problem": "1?", "answer": true}',
        "'answer' must be text or a finite number, not a boolean",
    ),
    "no number for an answer": (
        b'{"problem": "1?", "answer": NaN}',
        "'answer' must be text or a finite number, not nan",
    ),
    "an endless answer": (b'{"problem": "1?", "answer": -1e999}', "not -inf"),
    "a solution without a box": (
        b'{"problem": "1?", "solution": "It is 2."}',
        r"no 'answer', and no \boxed{answer} in 'solution'",
    ),
    "a fraction as id": (
        b'{"problem": "1?", "answer": "2", "unique_id": 0.5}',
        "'unique_id' must be text or an integer",
    ),
    "a boolean as id": (b'{"problem": "1?", "answer": "2", "unique_id": true}', "not a boolean"),
    "an object for an answer": (b'{"problem": "1?", "answer": {}}', "not an object"),
    "a NUL": (b'{"problem": "1 \\u0000?", "answer": "2"}', "NUL"),
    "a lone surrogate": (b'{"problem": "1 \\ud800?", "answer": "2"}', "lone surrogate"),
    "a lone surrogate as id": (b'{"problem": "1?", "answer": "2", "unique_id": "\\udfff"}', "'unique_id' contains"),
    "not UTF-8": (b'{"problem": "\xff", "answer": "2"}', "not UTF-8"),
    "too long": (b'{"problem": "' + b"x" * MAX_LINE_BYTES + b'", "answer": "2"}', "longer than"),
    "nested too deeply": (b"[" * 100_000, "not JSON"),
}


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.mark.parametrize(("line", "reason"), BAD.values(), ids=BAD.keys())
def test_an_invalid_line_is_reported_and_refused_or_skipped(tmp_path: Path, line: bytes, reason: str) -> None:
    path = write(tmp_path / "problems.jsonl", GOOD, b"", line, GOOD)
    with pytest.raises(ProblemFileError) as refused:
        read_problems(path)
    assert [bad.number for bad in refused.value.bad_lines] == [3]
    assert reason in str(refused.value.bad_lines[0])

    file = read_problems(path, OnBadLine.SKIP)
    assert len(file.problems) == 2
    assert [bad.number for bad in file.skipped] == [3]


def test_fields_of_math_500_are_read_and_numbers_become_text(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", b"\xef\xbb\xbf" + GOOD, b'{"problem": "half?", "answer": 0.5, "subject": "x"}')
    first, second = read_problems(path).problems
    assert first == EvalProblem("a/1", "1 + 1?", "2", 1)
    assert (second.answer, second.level) == ("0.5", None)


def test_fields_of_math_are_read_and_an_answer_beside_a_solution_counts(tmp_path: Path) -> None:
    solution = rb'"solution": "We get $\\boxed{4}$, no, $\\boxed{\\frac{1}{2}}$."'
    line = b'{"problem": "half?", "level": "Level 5", "type": "Algebra", ' + solution + b"}"
    with_answer = b'{"problem": "half?", "answer": "3", ' + solution + b"}"
    first, second = read_problems(write(tmp_path / "p.jsonl", line, with_answer)).problems
    assert (first.answer, first.level) == (r"\frac{1}{2}", "Level 5")
    assert second.answer == "3"


def test_integers_as_ids_become_text(tmp_path: Path) -> None:
    lines = (b'{"problem": "1?", "answer": "2", "unique_id": %d}' % number for number in (7, 0))
    assert [problem.unique_id for problem in read_problems(write(tmp_path / "p", *lines)).problems] == ["7", "0"]


OTHER = {
    "UTF-16": (GOOD.decode().encode("utf-16"), "UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8"),
    "UTF-16 without a mark": (GOOD.decode().encode("utf-16-le"), "UTF-16 text; convert it: iconv -f UTF-16LE"),
    "gzip": (gzip.compress(GOOD), "compressed by gzip; unpack it: gunzip"),
    "Parquet": (b"PAR1" + bytes(20), "a Parquet file; give it a name that ends in .parquet"),
}


@pytest.mark.parametrize(("content", "name"), OTHER.values(), ids=OTHER.keys())
def test_a_file_of_another_format_is_called_what_it_is(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    readers: list[Callable[[], object]] = [
        lambda: read_problems(path, OnBadLine.SKIP),
        lambda: look_at(path),
        lambda: look_at(path, InputKind.OPENAI),
    ]
    for read in readers:
        with pytest.raises(ProblemFileError) as refused:
            read()
        assert str(refused.value).startswith(f"{path} is {name}")
        assert not refused.value.bad_lines
    [error] = result_of(checking(path, "/v1/chat/completions", 10))
    assert isinstance(error, LineError)
    assert error.code == "invalid_file"
    assert error.message == f"the file is {name.partition(';')[0]}, but must be JSON lines in UTF-8"


def test_a_pipe_is_read_from_its_beginning(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write, args=(pipe, GOOD))
    writer.start()
    assert len(read_problems(pipe).problems) == 1
    writer.join()


def test_a_problem_without_an_id_is_named_by_its_question_not_its_place(tmp_path: Path) -> None:
    line = b'{"problem": "1?", "answer": "2"}'
    alone = read_problems(write(tmp_path / "a", line)).problems[0]
    second = read_problems(write(tmp_path / "b", GOOD, line)).problems[1]
    assert alone.unique_id == second.unique_id


def test_the_limit_ends_the_reading_before_later_invalid_lines(tmp_path: Path) -> None:
    assert len(read_problems(write(tmp_path / "p", GOOD, GOOD, b"{"), limit=2).problems) == 2


def test_a_missing_file_and_one_without_problems_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemFileError, match="no problems"):
        read_problems(write(tmp_path / "empty"))
    with pytest.raises(ProblemFileError, match="cannot read"):
        read_problems(tmp_path / "missing")
    with pytest.raises(ProblemFileError, match="cannot read"):
        read_problems(tmp_path)


def test_the_output_of_banyan_problems_can_be_read(tmp_path: Path) -> None:
    from itertools import islice

    from deployments.embedded.problems import Split, draw_problems

    drawn = list(islice(draw_problems(Split.TEST, 1), 5))
    path = write(tmp_path / "p", *(json.dumps(problem.as_json()).encode() for problem in drawn))
    assert [problem.unique_id for problem in read_problems(path).problems] == [problem.unique_id for problem in drawn]
