"""The cluster on a virtual clock: what is simulated, and what it is calibrated with and held against.

python -m benchmarks.cluster_sim curves        measures the engines of this machine
python -m benchmarks.cluster_sim calls         measures a real controller before engines that cost nothing
python -m benchmarks.cluster_sim served        measures the application on this machine
python -m benchmarks.cluster_sim simulate      from the last results of these: predictions, and clusters of many
"""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.record import RESULTS, claim, show_claims, write_result
from cluster.launch.environment import ensure_token, set_environment
from deployments.config import AppConfig

WITHIN = 0.2
SEARCHES = 10_000
FLOWS = 100_000
SLOWER = 10.0
"""Where replicas come and go, engines are that much slower than the embedded models: replicas take half a minute to
start, and with the small models' speed all would be over by then."""
console = Console(stderr=True)
app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def curves(
    problems: Annotated[int, typer.Option(min=8, max=512, help="Searches that are recorded.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="Of each measurement.")] = 1.5,
) -> None:
    """What a step of the engines costs by batch size, and what they write."""
    from benchmarks.cluster_sim.batch_curves import measured

    set_environment()
    _keep("batch_curves", measured(AppConfig.model_validate({"cache": {"enabled": False}}), problems, seconds))


@app.command()
def calls(seconds: Annotated[float, typer.Option(min=1, max=60, help="Of each measurement.")] = 5.0) -> None:
    """What a controller costs, and how many searches it serves, before engines that cost nothing."""
    from benchmarks.cluster_sim.calls import measured

    set_environment()  # before Ray is imported
    ensure_token()
    _keep("controller_calls", measured(seconds))


@app.command()
def served(
    problems: Annotated[int, typer.Option(min=16, max=1000, help="At each point in each turn.")] = 64,
    turns: Annotated[int, typer.Option(min=1, max=20)] = 3,
) -> None:
    """What the application on this machine serves, at several loads."""
    from benchmarks.cluster_sim.served_points import measured

    set_environment()  # before Ray is imported
    ensure_token()
    _keep("served_points", measured(problems, turns))


@app.command()
def simulate(
    searches: Annotated[int, typer.Option(min=100, help="With trees, on 100 generators.")] = SEARCHES,
    flows: Annotated[int, typer.Option(min=1000, help="Without trees, on 1,000 generators.")] = FLOWS,
) -> None:
    """Predictions beside what was measured, and clusters of many replicas."""
    from benchmarks.cluster_sim import points
    from benchmarks.cluster_sim.costs import Costs
    from benchmarks.cluster_sim.served_points import SEARCHES as ASKED
    from benchmarks.cluster_sim.workload import Language, problems_of

    results = {name: _last(name) for name in ("batch_curves", "controller_calls", "served_points")}
    language = Language(problems_of(results["batch_curves"]["problems"]))
    costs = Costs.of(results["batch_curves"], results["controller_calls"])

    rows: list[dict[str, Any]] = []
    for point in results["served_points"]["points"]:
        clients, asked = point["clients"], ASKED[point["search"]]
        found = points.served(costs, language, asked, clients, 8 * clients + 64, _median(point["runs"], "cores"))
        measured = _median(point["runs"], "searches_per_s")
        rows.append(_row(f"served, {point['search']}, {clients} clients", found["searches_per_s"], measured))
        of_search = {name: round(_median(point["runs"], name), 2) for name in ("nodes", "tokens", "cores")}
        rows[-1] |= {"simulated": found, "measured_of_a_search": of_search}
        _say(rows[-1])
    limits = results["controller_calls"]["limit"]
    limit = points.controller_limit(costs.calls, _median(limits, "cores"), 400)
    measured = statistics.median(run["searches"] / run["seconds"] for run in limits)
    rows.append(_row("one controller, engines that cost nothing", limit, measured))
    _say(rows[-1])
    alone = points.controller_limit(costs.calls, None, 400)
    console.print(f"one controller with a core of its own: {alone:.1f} searches/s")

    beam = ASKED["beam 16"]
    one = points.with_trees(costs, language, beam, points.Numbers(1, 2, 2), 200)
    sizes = [points.numbers_for(generators, one.figures["cpu_s_per_search"]) for generators in (1, 10, 100, 1000)]
    trees, rounds = [], []
    for of in sizes[:3]:
        done = points.with_trees(costs, language, beam, of, max(200, searches * of.generators // 100))
        trees.append(done.figures)
        _tell("with trees", done.figures)
    for of in sizes:
        rounds.append(points.without_trees(costs, language, done.means, of, max(1000, flows * of.generators // 1000)))
        _tell("without", rounds[-1])
    scaled = points.autoscaled(costs.slower(SLOWER), language, beam, points.SURGING, points.SURGE)
    _tell("autoscaled", scaled)

    at_100 = rounds[2]["steady_per_s"] / trees[2]["steady_per_s"]
    answered = [each["searches"] for each in (trees[2], rounds[3])]
    left = [left for each in (*trees, scaled) for left in each["left_over"]]
    held = [
        *(
            claim(
                f"{row['point']}: predicted over measured", row["ratio"], f"within {WITHIN:.0%}", _close(row["ratio"])
            )
            for row in rows
        ),
        claim(
            "searches answered, 100 generators and 1,000", answered, [searches, flows], answered == [searches, flows]
        ),
        claim("without trees over with, 100 generators", round(at_100, 3), f"within {WITHIN:.0%}", _close(at_100)),
        claim("left over in generators", left, [], not left),
        claim(
            "changes of direction in a step of the load",
            scaled["turns_in_a_step"],
            "<= 2",
            max(scaled["turns_in_a_step"].values()) <= 2,
        ),
    ]
    _keep(
        "cluster_sim",
        {
            "of": {name: result["commit"] for name, result in results.items()},
            "costs": costs.model_dump(mode="json"),
            "predictions": rows,
            "controller_with_a_core_per_s": round(alone, 2),
            "with_trees": trees,
            "without_trees": rounds,
            "autoscaled": scaled,
            "claims": held,
        },
    )
    console.print(_table(rows, trees, rounds))
    show_claims(console, held)


def _row(point: str, predicted: float, measured: float) -> dict[str, Any]:
    ratio = round(predicted / measured, 3)
    return {"point": point, "predicted": round(predicted, 3), "measured": round(measured, 3), "ratio": ratio}


def _close(ratio: float) -> bool:
    return abs(ratio - 1.0) <= WITHIN


def _median(runs: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(run[name] for run in runs))


def _say(row: dict[str, Any]) -> None:
    console.print(f"{row['point']}: {row['predicted']:.2f} searches/s predicted, {row['measured']:.2f} measured")


def _tell(kind: str, figures: dict[str, Any]) -> None:
    console.print(f"{kind}: { ({name: value for name, value in figures.items() if not isinstance(value, dict)}) }")


def _table(rows: list[dict[str, Any]], trees: list[dict[str, Any]], rounds: list[dict[str, Any]]) -> Table:
    table = Table("what", "searches/s predicted", "measured", "ratio", "p95 s")
    for row in rows:
        table.add_row(row["point"], f"{row['predicted']:.2f}", f"{row['measured']:.2f}", f"{row['ratio']:.2f}", "")
    for kind, figures in (*(("trees", each) for each in trees), *(("no trees", each) for each in rounds)):
        replicas = f"{figures['generators']:,} generators, {figures['scorers']:,} PRMs, {figures['controllers']:,} "
        table.add_row(
            f"{replicas}controllers; {figures['searches']:,} searches, {kind}",
            f"{figures['steady_per_s']:.1f}",
            "",
            "",
            f"{figures['p95_s']:.2f}",
        )
    return table


def _last(name: str) -> dict[str, Any]:
    """The newest result of a command."""
    found: Iterator[Path] = RESULTS.glob(f"{name}-*.json")
    results: list[dict[str, Any]] = [json.loads(path.read_text()) for path in found]
    if not results:
        raise typer.BadParameter(f"no {name} in {RESULTS}: run the command that measures it first")
    return max(results, key=lambda result: str(result["measured_at"]))


def _keep(name: str, figures: dict[str, Any]) -> None:
    path = write_result(name, figures)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    app()
