"""The comparison of two commits: what it starts, and the figures of its rounds."""

import importlib.metadata
import math
import os
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.model_pairs import ModelPair
from benchmarks.pace.applications import config_for
from benchmarks.pace.checkouts import Checkout, hardware_of, same_packages, this_checkout
from benchmarks.pace.figures import Comparison
from benchmarks.pace.rounds import Batch, Round, Turn, order, round_fits
from benchmarks.ratios import ratio_with_interval
from benchmarks.served_overhead import Searched

PROJECT = """
[project]
name = "banyan"
version = "9.0"

[project.scripts]
banyan = "elsewhere.cli:app"

[project.entry-points."vllm.general_plugins"]
banyan = "elsewhere.plugin:register"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A source tree with a different layout."""
    root = tmp_path / "tree"
    (root / "scripts").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "scripts" / "environment").write_text("# A comment.\n\nexport RAY_SERVE_X=1\nexport OTHER=${HOME}/x\n")
    return Checkout("base", root, Path("/env/bin/python"))


def batch(seconds: float, latencies: list[float], answer: str = "4", cpu: float = 1.0) -> Batch:
    return Batch([Searched(answer, 5, 50) for _ in latencies], latencies, seconds, {"engine": cpu})


def turn(seconds: float, alone: list[float], answer: str = "4") -> Turn:
    return Turn(batch(seconds, [1.0] * 10), batch(sum(alone), alone, answer))


def rounds(*, throughput: float = 1.0, latency: float = 1.0) -> list[Round]:
    """Three rounds in which ours is above base by these factors."""
    return [
        {"base": turn(seconds, [1.0, 2.0]), "ours": turn(seconds / throughput, [latency, 2 * latency])}
        for seconds in (10.0, 20.0, 15.0)
    ]


def broken(measured: list[Round]) -> list[str]:
    return [each["name"] for each in Comparison(measured).claims("heavy") if not each["holds"]]


def test_the_command_is_the_trees_own(checkout: Checkout) -> None:
    python, flag, code = checkout.command
    assert (python, flag) == ("/env/bin/python", "-c")
    assert "import elsewhere.cli as command;" in code
    assert code.endswith("command.app()")


def test_the_environment_has_the_trees_modules_and_not_the_variables_that_it_sets_itself(
    checkout: Checkout, tmp_path: Path
) -> None:
    assert checkout.variables == {"RAY_SERVE_X", "OTHER"}
    inherited = {"PATH": "/bin", "OTHER": "1", "RAY_ADDRESS": "auto", "TMPDIR": "/long", "PYTHONPATH": "/theirs"}
    environment = checkout.environment(inherited, checkout.variables, tmp_path / "t")
    assert environment.keys() == {"PATH", "TMPDIR", "PYTHONPATH"}
    assert (environment["PATH"], environment["TMPDIR"]) == ("/bin", str(tmp_path / "t"))
    first, *_ = environment["PYTHONPATH"].split(os.pathsep)
    assert first == str(checkout.root)


def test_the_trees_entry_points_come_before_those_that_are_installed(checkout: Checkout, tmp_path: Path) -> None:
    _, metadata = checkout.environment({}, (), tmp_path / "t")["PYTHONPATH"].split(os.pathsep)
    found = next(iter(importlib.metadata.distributions(name="banyan", path=[metadata, *sys.path])))
    assert found.version == "9.0"
    [plugin] = found.entry_points.select(group="vllm.general_plugins")
    assert plugin.value == "elsewhere.plugin:register"


def test_this_checkout_names_a_command_that_exists_and_variables() -> None:
    ours = this_checkout()
    assert "import cluster.cli.main as command" in ours.command[-1]
    assert "RAY_AUTH_MODE" in ours.variables


def test_the_config_is_the_trees_own_with_other_models_and_without_a_store(checkout: Checkout) -> None:
    limits = {"seconds": 30}
    arguments = {
        "generator": {"model": "a", "max_model_len": 7},
        "prm": {"model": "b"},
        "controller": {"store": {"path": "~/x"}, "limits": limits},
    }
    file = {"http_options": {"port": 8000}, "applications": [{"name": "banyan", "args": arguments}]}
    (checkout.root / "serve_config.yaml").write_text(yaml.safe_dump(file))
    config = config_for(checkout, ModelPair("/models/generator", "/models/prm"))
    assert config["http_options"] == {"port": 8000}
    assert config["applications"][0]["args"] == {
        "generator": {"model": "/models/generator", "max_model_len": 7},
        "prm": {"model": "/models/prm"},
        "controller": {"limits": limits},
        "http": {"canary_every_s": 0},
    }


def test_the_environment_is_shared_where_both_trees_lock_the_same_packages(tmp_path: Path) -> None:
    ours, base = tmp_path / "ours", tmp_path / "base"
    for root in (ours, base):
        (root / "requirements").mkdir(parents=True)
    (ours / "requirements" / "cpu.lock").write_text("ray==1\n")
    assert not same_packages(ours, base, "cpu")
    (base / "requirements" / "cpu.lock").write_text("ray==1\n")
    assert same_packages(ours, base, "cpu")
    (base / "requirements" / "cpu.lock").write_text("ray==2\n")
    assert not same_packages(ours, base, "cpu")


def test_the_hardware_is_what_the_environment_was_set_up_for(tmp_path: Path) -> None:
    (tmp_path / ".banyan").write_text("cuda 0123abcd\n")
    assert hardware_of(tmp_path) == "cuda"


def test_a_ratio_is_a_geometric_mean_with_the_interval_of_students_t() -> None:
    ratio = ratio_with_interval([(0.5, 1.0), (2.0, 1.0)])
    assert ratio.ratio == pytest.approx(1.0)
    assert ratio.high == pytest.approx(math.exp(12.7062 * math.log(2)), rel=1e-4)
    assert ratio.low == pytest.approx(1 / ratio.high)
    assert ratio_with_interval([(1.1, 1.0)] * 3) == pytest.approx((1.1, 1.1, 1.1))


def test_ratios_are_ours_over_base() -> None:
    comparison = Comparison(rounds(throughput=1.2, latency=0.8))
    assert comparison.throughput.ratio == pytest.approx(1.2)
    assert comparison.latency.ratio == pytest.approx(0.8)
    assert comparison.json["sides"]["base"]["problems_per_second"] == [1.0, 0.5, 0.6667]
    assert comparison.json["sides"]["ours"]["latency_s_alone"] == [[0.8, 1.6]] * 3
    assert comparison.json["sides"]["ours"]["p50_latency_s_alone"] == 1.2


def test_cpu_time_is_per_step_of_all_rounds() -> None:
    assert Comparison(rounds()).json["sides"]["ours"]["cpu_ms_per_step"] == {
        "in_flight": {"engine": 20.0},
        "alone": {"engine": 100.0},
    }


@pytest.mark.parametrize(
    ("measured", "names"),
    [
        (rounds(), []),
        (rounds(throughput=0.971, latency=1.03), []),
        (rounds(throughput=0.969), ["heavy: problems/s"]),
        (rounds(latency=1.032), ["heavy: seconds of a problem alone"]),
        (rounds(throughput=0.5, latency=2), ["heavy: problems/s", "heavy: seconds of a problem alone"]),
    ],
)
def test_a_slower_working_tree_breaks_a_claim(measured: list[Round], names: list[str]) -> None:
    failed = broken(measured)
    assert [name.split(",")[0].removesuffix(" at 16 in flight") for name in failed] == names


def test_searches_with_other_results_are_counted() -> None:
    base, ours = turn(10.0, [1.0, 2.0]), turn(10.0, [1.0, 2.0], answer="5")
    same, other = Comparison([{"base": base, "ours": base}]), Comparison([{"base": base, "ours": ours}])
    assert (same.equal_searches, same.searches) == (12, 12)
    assert (other.equal_searches, other.searches) == (10, 12)


def test_the_application_that_goes_first_alternates() -> None:
    names = {"base": None, "ours": None}
    assert [order(names, index) for index in range(3)] == [["base", "ours"], ["ours", "base"], ["base", "ours"]]


def test_rounds_stop_at_the_deadline_but_there_are_two() -> None:
    assert round_fits(1, 4, last_s=100, left_s=-5)
    assert round_fits(2, 4, last_s=100, left_s=120)
    assert not round_fits(2, 4, last_s=100, left_s=90)
    assert not round_fits(4, 4, last_s=100, left_s=900)


def test_the_table_has_a_row_for_each_figure() -> None:
    assert Comparison(rounds()).table("heavy").row_count == 4
