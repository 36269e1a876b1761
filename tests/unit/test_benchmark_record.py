"""Result files of benchmarks."""

import json
from pathlib import Path

import pytest

from benchmarks import record


def test_a_second_run_of_a_commit_gets_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    kept = [record.write_result("test", {"run": number}) for number in range(3)]
    assert [json.loads(path.read_text())["run"] for path in kept] == [0, 1, 2]
    first, *others = [path.stem for path in kept]
    assert others == [f"{first}-2", f"{first}-3"]
