"""Measures a pair of models by the split of KV memory, the batch size and the searches at once, and plots it.

    banyan problems --n 24 --output problems.jsonl
    python -m benchmarks.thesis serve_config.yaml problems.jsonl --memory 16MiB
    python -m benchmarks.thesis my_config.yaml problems.jsonl --shares 0.3,0.7,0.5 --batches 64,128,256 --compare clamp

Engines run in this process's children, without Serve, as `banyan plan` would split the device's memory between them:
``CONFIG`` gives the models, ``--memory`` the bytes of KV for both. The last value of each option is the base, at which
the others are varied. Points that ``--rows`` has already are not measured again, so a run can be ended and continued.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from pydantic import ByteSize, TypeAdapter
from rich.console import Console
from rich.table import Table

from benchmarks.record import claim, show_claims, write_result
from benchmarks.thesis.plots import compared, write_charts
from benchmarks.thesis.points import COMPARISONS, Application, Point, Sweeps, by_application, config_of
from cluster.evaluation.problem_files import read_problems
from cluster.launch.config_file import app_config, read_config
from deployments.startup.environment import set_environment

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "performance"
SEARCH = '{"strategy": "beam_search", "n": 16, "m": 4}'
MIN_FILL_GAIN = 2.0
console = Console(stderr=True)


def _numbers(option: str, given: str, cast: type) -> list[Any]:
    try:
        return [cast(part) for part in given.split(",")]
    except ValueError:
        raise typer.BadParameter(f"numbers with commas between them, not {given!r}", param_hint=option) from None


def _kept(path: Path | None) -> dict[Point, dict[str, Any]]:
    """The rows of an earlier run, by point."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {Point(Application(row["share"], row["batch"], row["side"]), row["clients"]): row for row in rows}


def claims(rows: list[dict[str, Any]], sweeps: Sweeps) -> list[dict[str, Any]]:
    """The batch is fuller with more searches at once, and every point generates the same number of tokens."""
    base = [row for row in rows if sweeps.base._asdict().items() <= row.items()]
    fills = {row["clients"]: row["generator"]["batch_fill"] for row in base}
    gain = round(fills[max(fills)] / fills[min(fills)], 2)
    tokens = {row["generated_tokens"] for row in rows}
    what = f"generator's batch fill, {max(fills)} searches at once over {min(fills)}"
    return [
        claim(what, gain, f">= {MIN_FILL_GAIN}", gain >= MIN_FILL_GAIN),
        claim("different numbers of generated tokens among all points", len(tokens), 1, len(tokens) == 1),
    ]


def main(
    config: Annotated[Path, typer.Argument(help="As for `serve run`.")],
    problems: Annotated[Path, typer.Argument(help="As for `banyan eval`.")],
    memory: Annotated[str, typer.Option(help="KV memory of both engines.")] = "512MiB",
    shares: Annotated[str, typer.Option(help="The generator's shares of it; the last is the base.")] = "0.2,0.75,0.5",
    batches: Annotated[str, typer.Option(help="Values of generator.max_num_seqs; likewise.")] = "16,64",
    clients: Annotated[str, typer.Option(help="Searches at once; likewise.")] = "1,4,16",
    limit: Annotated[int, typer.Option(min=1, help="Problems of the file to use.")] = 24,
    search: Annotated[str, typer.Option(help="Settings of the search, as JSON.")] = SEARCH,
    compare: Annotated[
        list[str] | None, typer.Option(help=f"With and without it; may be repeated: {', '.join(COMPARISONS)}.")
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="Keeps each point's figures; JSON lines.")] = None,
    plots: Annotated[Path, typer.Option(help="Directory of the charts.")] = DOCUMENTATION,
) -> None:
    set_environment()  # before vLLM is imported
    from benchmarks.thesis.measuring import measure

    if unknown := {*(compare or ())} - COMPARISONS.keys():
        raise typer.BadParameter(f"{', '.join(COMPARISONS)}, not {', '.join(unknown)}", param_hint="--compare")
    sweeps = Sweeps(
        _numbers("--shares", shares, float),
        _numbers("--batches", batches, int),
        _numbers("--clients", clients, int),
        compare or (),
    )
    given = app_config(read_config(config))
    kv_bytes = int(TypeAdapter(ByteSize).validate_python(memory))
    asked = read_problems(problems, limit=limit).problems
    done = _kept(rows)
    for application, points in by_application(point for point in sweeps.points if point not in done).items():
        console.print(f"{application.side}, share {application.share:g}, batch {application.batch}")
        own = config_of(given, application, kv_bytes)
        found = uvloop.run(measure(own, points, asked, json.loads(search)))
        done |= dict(zip(points, found, strict=True))
        if rows is not None:
            with rows.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
    measured = [done[point] for point in sweeps.points]
    checked = claims(measured, sweeps)
    result = {
        "models": {"generator": given.generator.model, "prm": getattr(given.prm, "model", None)},
        "search": json.loads(search),
        "kv_bytes": kv_bytes,
        "problems": len(asked),
        "over_without": compared(measured, sweeps),
        "rows": measured,
        "claims": checked,
    }
    path = write_result("thesis", result)
    write_charts(measured, sweeps, plots)
    _show(measured)
    show_claims(console, checked)
    console.print(f"kept in {path.relative_to(path.parents[2])}, charts in {plots}")


def _show(rows: list[dict[str, Any]]) -> None:
    figures = ("tokens_per_s", "batch_fill", "mean_kv_use", "hit_rate", "recomputed_tokens", "preemptions", "held_back")
    for role in ("generator", "prm"):
        table = Table("side", "share", "batch", "clients", "searches/s", *figures, title=role)
        for row in rows:
            point = row["side"], f"{row['share']:g}", str(row["batch"]), str(row["clients"])
            table.add_row(*point, f"{row['searches_per_s']:.2f}", *(str(row[role][name]) for name in figures))
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
