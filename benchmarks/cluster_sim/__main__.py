"""The cluster on a virtual clock: calibration, comparison with this machine, and predictions.

python -m benchmarks.cluster_sim curves        measures the engines of this machine
python -m benchmarks.cluster_sim calls         measures a real controller in front of engines that cost nothing
python -m benchmarks.cluster_sim served        measures the application on this machine
python -m benchmarks.cluster_sim predict       predicts what calls and served measured, from the newest results
python -m benchmarks.cluster_sim clusters      simulates clusters of many replicas
python -m benchmarks.cluster_sim routers       simulates four generators behind different routers
python -m benchmarks.cluster_sim ahead         predicts what writing ahead gains, on this machine and on GPUs
"""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cluster_sim.costs import Costs
from benchmarks.cluster_sim.workload import Language, problems_of
from benchmarks.record import RESULTS, claim, show_claims, write_result
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.startup.environment import set_environment

WITHIN = 0.2
SEARCHES = 10_000
FLOWS = 100_000
SLOWDOWN = 10.0
"""Factor on the engines' times where replicas come and go: a replica takes half a minute to start, and at the embedded
models' speed the load would be over by then."""
console = Console(stderr=True)
app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def curves(
    problems: Annotated[int, typer.Option(min=8, max=512, help="Searches to record.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds of each measurement.")] = 0.8,
) -> None:
    """Measures what an engine step costs by batch size, and records what the engines write."""
    from benchmarks.cluster_sim.batch_curves import measured

    set_environment()
    _write("batch_curves", measured(AppConfig.model_validate({"cache": {"enabled": False}}), problems, seconds))


@app.command()
def calls(seconds: Annotated[float, typer.Option(min=1, max=60, help="Seconds of each measurement.")] = 5.0) -> None:
    """Measures a controller's CPU cost and throughput in front of engines that cost nothing."""
    from benchmarks.cluster_sim.calls import measured

    set_environment()  # before Ray is imported
    ensure_token()
    _write("controller_calls", measured(seconds))


@app.command()
def served(
    problems: Annotated[int, typer.Option(min=16, max=1000, help="Problems at each point in each turn.")] = 64,
    turns: Annotated[int, typer.Option(min=1, max=20)] = 3,
) -> None:
    """Measures the application on this machine at several loads."""
    from benchmarks.cluster_sim.served_points import measured

    set_environment()  # before Ray is imported
    ensure_token()
    _write("served_points", measured(problems, turns))


@app.command()
def predict() -> None:
    """Predicts what ``served`` and ``calls`` measured, from the newest results of ``curves`` and ``calls``."""
    from benchmarks.cluster_sim import points
    from benchmarks.cluster_sim.served_points import SEARCHES as ASKED

    results, costs, language = calibrated("served_points")
    rows: list[dict[str, Any]] = []
    for point in results["served_points"]["points"]:
        clients, asked, runs = point["clients"], ASKED[point["search"]], point["runs"]
        speed = _median(runs, "speed") / costs.pace.speed
        found = points.served(costs.at(speed), language, asked, clients, 4 * clients + 64, _median(runs, "cores"))
        measured = _median(runs, "searches_per_s")
        rows.append(_row(f"served, {point['search']}, {clients} clients", found["searches_per_s"], measured))
        of_search = {name: round(_median(runs, name), 2) for name in ("nodes", "tokens", "cores")}
        rows[-1] |= {"simulated": found, "measured_of_a_search": of_search, "speed": round(speed, 3)}
        console.print(rows[-1]["point"])
    limits = results["controller_calls"]["limit"]
    then = costs.at(_median(limits, "fast")).calls
    limit = points.controller_limit(then, _median(limits, "cores"), 300, costs.pace)
    measured = statistics.median(run["searches"] / run["seconds"] for run in limits)
    rows.append(_row("one controller, engines that cost nothing", limit.searches_per_s, measured))
    alone = points.controller_limit(costs.calls, None, 300)
    busy_s = statistics.median(run["worth"] * run["cpu_s"]["controller"] / run["searches"] for run in limits)
    rows.append(_row("one controller with a core of its own", alone.searches_per_s, 1 / busy_s))
    table = Table("what", "searches/s predicted", "measured", "predicted over measured")
    for row in rows:
        table.add_row(row["point"], f"{row['predicted']:.2f}", f"{row['measured']:.2f}", f"{row['ratio']:.2f}")
    console.print(table)
    claims = [claim(row["point"], row["ratio"], f"within {WITHIN:.0%}", _is_close(row["ratio"])) for row in rows]
    show_claims(console, claims)
    commits = {name: result["commit"] for name, result in results.items()}
    _write("cluster_sim_predicted", {"of": commits, "rows": rows, "claims": claims})


@app.command()
def routers(
    searches: Annotated[int, typer.Option(min=50, help="Searches of each router at each point.")] = 400,
    prompt: Annotated[int, typer.Option(min=0, max=800, help="Extra prompt tokens of each problem.")] = 0,
) -> None:
    """Compares routers where replicas share this machine's cores, as in `routing-*.json`, and where each replica
    has its own core, so that an overloaded replica keeps searches waiting while other cores are idle."""
    from benchmarks.cluster_sim import points
    from benchmarks.cluster_sim.served_points import SEARCHES as ASKED

    _, costs, short = calibrated()
    language = Language([each._replace(prompt_tokens=each.prompt_tokens + prompt) for each in short.problems])
    rows, claims = [], []
    for cores, clients, controllers in ((2.0, 16, 1), (None, 16, 2), (None, 64, 8)):
        size = points.Numbers(4, 2, controllers).size
        point = f"{clients} clients, {'cores of their own' if cores is None else f'{cores:.0f} cores'}"
        found = {
            name: points.served(costs, language, ASKED["beam 16"], clients, searches, cores, size, through)
            for name, through in points.ROUTERS.items()
        }
        default, ours = found[points.POWER_OF_TWO], found[points.SERVED]
        for name, figures in found.items():
            over = {
                f"{figure}_over_power_of_two": round(figures[figure] / default[figure], 3)
                for figure in ("searches_per_s", "p95_s")
            }
            rows.append({"cores": cores or "own", "clients": clients, "router": name, **over, **figures})
            _print_figures(f"{name}, {point}", rows[-1])
        best = max(figures["searches_per_s"] for name, figures in found.items() if figures is not ours)
        ratio = round(ours["searches_per_s"] / best, 3)
        claims.append(claim(f"{point}: {points.SERVED} over the best other", ratio, ">= 0.97", ratio >= 0.97))
    show_claims(console, claims)
    _write("cluster_sim_routers", {"prompt": prompt, "rows": rows, "claims": claims})


@app.command()
def clusters(
    searches: Annotated[int, typer.Option(min=100, help="Searches with trees, on 100 generators.")] = SEARCHES,
    flows: Annotated[int, typer.Option(min=1000, help="Searches without trees, on 1,000 generators.")] = FLOWS,
) -> None:
    """Simulates clusters of 1 to 1,000 generators, each program on its own core; and pools that follow a load."""
    from benchmarks.cluster_sim import points
    from benchmarks.cluster_sim.served_points import SEARCHES as ASKED

    results, costs, language = calibrated()
    beam = ASKED["beam 16"]
    one = points.with_trees(costs, language, beam, points.Numbers(1, 2, 2), 200)
    sizes = [points.numbers_for(generators, one.figures["cpu_s_per_search"]) for generators in (1, 10, 100, 1000)]
    trees, rounds = [], []
    for of in sizes[:3]:
        done = points.with_trees(costs, language, beam, of, max(200, searches * of.generators // 100))
        trees.append(done.figures)
        _print_figures("with trees", done.figures)
    for of in sizes:
        rounds.append(points.without_trees(costs, language, done.means, of, max(1000, flows * of.generators // 1000)))
        _print_figures("without", rounds[-1])
    scaled = points.autoscaled(costs.slower(SLOWDOWN), language, beam, points.SURGING, points.SURGE)
    _print_figures("autoscaled", scaled)

    at_100 = round(rounds[2]["steady_per_s"] / trees[2]["steady_per_s"], 3)
    answered, asked = [trees[2]["searches"], rounds[3]["searches"]], [searches, flows]
    left = [left for each in (*trees, scaled) for left in each["left_over"]]
    turns = scaled["turns_in_a_step"]
    claims = [
        claim("searches answered by 100 generators, with trees, and by 1,000", answered, asked, answered == asked),
        claim("without trees over with, 100 generators", at_100, f"within {WITHIN:.0%}", _is_close(at_100)),
        claim("left over in generators", left, [], not left),
        claim("changes of direction in a step of the load", turns, "<= 2", max(turns.values()) <= 2),
    ]
    table = Table("generators", "PRMs", "controllers", "searches", "trees", "searches/s", "p95 s")
    for kind, figures in (*(("yes", each) for each in trees), *(("no", each) for each in rounds)):
        numbers = (f"{figures[name]:,}" for name in ("generators", "scorers", "controllers", "searches"))
        table.add_row(*numbers, kind, f"{figures['steady_per_s']:,.1f}", f"{figures['p95_s']:.2f}")
    console.print(table)
    show_claims(console, claims)
    commits = {name: result["commit"] for name, result in results.items()}
    kept = {"with_trees": trees, "without_trees": rounds, "autoscaled": scaled, "claims": claims}
    _write("cluster_sim", {"of": commits, "costs": costs.model_dump(mode="json"), **kept})


@app.command()
def ahead() -> None:
    """Predicts what writing ahead gains: on this machine, beside the newest results of `benchmarks.write_ahead`, and
    with a GPU for each model, from the newest result of `benchmarks.gpu_curves`."""
    from benchmarks.cluster_sim.ahead import (
        GPU_LOADS,
        GPU_PAIRS,
        GPU_SETTINGS,
        MEASURED,
        SEARCHES,
        compared,
        gpu_costs,
        longer,
    )
    from deployments.engines.write_ahead import GPU

    results, costs, language = calibrated("gpu_curves")
    measured = sorted(_results("write_ahead"), key=lambda result: str(result["measured_at"]))
    cases = {name: case | {"of": result["commit"]} for result in measured for name, case in result["cases"].items()}
    here, claims, cores = [], [], float(costs.pace.cores)
    for name, case in cases.items():
        if case["pair"] == "embedded":  # whose engines `curves` measures
            searches = 4 * SEARCHES
            found = compared(costs, language, case["in_flight"], cores, ["auto"], case["slow"], MEASURED, searches)
            row = _row(name, found["ratio"][0], case["ratio"]["ratio"])
            here.append(row | found | {"of": case["of"], "ratio": (ratio := row["ratio"])})
            claims.append(claim(f"{name}: predicted over measured", ratio, f"within {WITHIN:.0%}", _is_close(ratio)))
            console.print(here[-1])
    device, gpus = results["gpu_curves"]["device"], []
    columns = ("generator", "reward model", "which reads", "siblings", "in flight", *map(str, GPU_SETTINGS))
    title = f"Simulated, {device}: time (one in flight) or throughput (others) with writing ahead over without"
    table = Table(*columns, title=title)
    for pair in GPU_PAIRS:
        of = gpu_costs(results["gpu_curves"]["curves"], pair, costs)
        for siblings in ("repeat", "differ"):
            texts = longer(language, siblings == "repeat")
            for in_flight in GPU_LOADS:
                found = compared(of, texts, in_flight, None, GPU_SETTINGS, device=GPU)
                gpus.append({**pair._asdict(), "siblings": siblings, **found})
                table.add_row(*pair, siblings, str(in_flight), *(f"{ratio:.2f}" for ratio in found["ratio"]))
                console.print(gpus[-1])
    same = all(row["same"] for row in (*here, *gpus))
    claims.append(claim("the same searches with and without writing ahead, and nothing left behind", same, True, same))
    console.print(table)
    show_claims(console, claims)
    commits = {name: result["commit"] for name, result in results.items()}
    simulated = {"here": here, "device": device, "settings": GPU_SETTINGS, "gpus": gpus}
    _write("cluster_sim_ahead", {"of": commits, **simulated, "claims": claims})


def calibrated(*others: str) -> tuple[dict[str, dict[str, Any]], Costs, Language]:
    """The newest results, and the costs and texts that follow from them."""
    results = {name: _last(name) for name in ("batch_curves", "controller_calls", *others)}
    costs = Costs.of(results["batch_curves"], results["controller_calls"])
    return results, costs, Language(problems_of(results["batch_curves"]["problems"]))


def _row(point: str, predicted: float, measured: float) -> dict[str, Any]:
    ratio = round(predicted / measured, 3)
    return {"point": point, "predicted": round(predicted, 3), "measured": round(measured, 3), "ratio": ratio}


def _is_close(ratio: float) -> bool:
    return abs(ratio - 1.0) <= WITHIN


def _median(runs: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(run[name] for run in runs))


def _print_figures(kind: str, figures: dict[str, Any]) -> None:
    console.print(f"{kind}: { ({name: value for name, value in figures.items() if not isinstance(value, dict)}) }")


def _results(name: str) -> list[dict[str, Any]]:
    """All results of a command."""
    found: Iterator[Path] = RESULTS.glob(f"{name}-*.json")
    return [json.loads(path.read_text()) for path in found]


def _last(name: str) -> dict[str, Any]:
    """The newest result of a command."""
    if not (results := _results(name)):
        raise typer.BadParameter(f"no {name} in {RESULTS}: run the command that measures it first")
    return max(results, key=lambda result: str(result["measured_at"]))


def _write(name: str, figures: dict[str, Any]) -> None:
    path = write_result(name, figures)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    app()
