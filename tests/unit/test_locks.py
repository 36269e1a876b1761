"""Properties of the lock files on which `make setup` relies."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKS = [REQUIREMENTS / f"{hardware}.lock" for hardware in ("cpu", "cuda")]
PIN = re.compile(r"([a-z0-9-]+)==((?:[0-9]+!)?[0-9][a-z0-9.]*)")


def read_pins(lock: Path) -> dict[str, str]:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    wrong = [line for line in lines if not PIN.fullmatch(line)]
    assert not wrong, "a lock holds `name==version` and nothing else: no index, no path, no build tag"
    names = [line.split("==")[0] for line in lines]
    assert len(names) == len(set(names))
    return dict(line.split("==") for line in lines)


def canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_contains_all_dependencies_of_the_project_for_its_hardware(lock: Path, project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras[lock.stem], *extras["dev"]]
    pins = read_pins(lock)
    assert {canonical(each) for each in named} <= pins.keys()
    exact = dict(re.sub(r"\[.*\]", "", each).split("==") for each in named if "==" in each)
    assert {name: pins[name] for name in exact} == exact


def test_both_locks_agree_on_the_packages_that_banyan_imports(project: dict[str, Any]) -> None:
    named = {canonical(each) for each in [*project["dependencies"], *project["optional-dependencies"]["dev"], "torch"]}
    cpu, cuda = (read_pins(REQUIREMENTS / f"{hardware}.lock") for hardware in ("cpu", "cuda"))
    assert {name: cpu[name] for name in named} == {name: cuda[name] for name in named}


def test_the_cpu_lock_has_no_package_that_conflicts_with_torchs_cpu_build() -> None:
    omitted = {line for line in (REQUIREMENTS / "cpu.omit").read_text().split("\n") if line and line[0] != "#"}
    assert {"torchvision", "torchaudio", "torchcodec"} <= omitted
    assert not omitted & read_pins(REQUIREMENTS / "cpu.lock").keys()
