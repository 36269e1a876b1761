"""An invalid line is reported with its number and reason, and is skipped or refused as configured."""

import json
from pathlib import Path

import pytest

from cluster.evaluation.problem_files import MAX_LINE_BYTES, OnBadLine, ProblemFileError, read_problems

GOOD = b'{"problem": "1 + 1?", "answer": "2", "level": 1, "unique_id": "a/1"}'

BAD = {
    "no JSON": (b"{", "not JSON"),
    "a list": (b"[1]", "this is a list"),
    "null": (b"null", "this is null"),
    "no problem": (b'{"answer": "2"}', "no 'problem'"),
    "no answer": (b'{"problem": "1 + 1?"}', "no 'answer'"),
    "empty problem": (b'{"problem": "  ", "answer": "2"}', "'problem' is empty"),
    "empty answer": (b'{"problem": "1 + 1?", "answer": ""}', "'answer' is empty"),
    "a number for a problem": (b'{"problem": 1, "answer": "2"}', "'problem' must be text, this is a number"),
    "a boolean for an answer": (b'{"problem": "1?", "answer": true}', "'answer' must be text or a number"),
    "an object for an answer": (b'{"problem": "1?", "answer": {}}', "this is an object"),
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
    assert first == ("a/1", "1 + 1?", "2", 1)
    assert (second.answer, second.level) == ("0.5", None)


def test_a_problem_without_an_id_gets_one_from_its_question_alone(tmp_path: Path) -> None:
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
