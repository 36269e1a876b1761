"""The charts of docs/performance.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.thesis.points import AS_CONFIGURED, Application, Sweeps
from benchmarks.thesis.svg import Line, line_chart

Row = Mapping[str, Any]
ROLES = {"generator": "generator", "prm": "reward model"}


def charts(rows: Sequence[Row], sweeps: Sweeps) -> dict[str, str]:
    """SVG by file name. ``rows``: a row for each of the sweeps' points."""
    base, most = sweeps.base, sweeps.clients[-1]

    def of(application: Application, clients: int) -> Row:
        wanted = {**application._asdict(), "clients": clients}
        return next(row for row in rows if wanted.items() <= row.items())

    by_share = {share: of(base._replace(share=share), most) for share in sorted(sweeps.shares)}
    by_batch = {batch: of(base._replace(batch=batch), most) for batch in sorted(sweeps.batches)}
    by_clients = {clients: of(base, clients) for clients in sorted(sweeps.clients)}
    share, batch, clients = "generator's share of the KV memory", "generator.max_num_seqs", "searches at once"
    found = {
        "throughput_by_split.svg": line_chart(
            "Throughput by the split of KV memory", share, "searches/s", {"": _line(by_share, "searches_per_s")}
        ),
        "throughput_by_batch.svg": line_chart(
            "Throughput by batch size", batch, "searches/s", {"": _line(by_batch, "searches_per_s")}, doubles=True
        ),
        "throughput_by_searches.svg": line_chart(
            "Generator's throughput by searches at once",
            clients,
            "generated tokens/s",
            {"": _line(by_clients, "generator", "tokens_per_s")},
            doubles=True,
        ),
        "batch_fill.svg": line_chart(
            "Requests in an engine step over the largest batch",
            clients,
            "batch fill",
            _both(by_clients, "batch_fill"),
            doubles=True,
        ),
        "hit_rates.svg": line_chart(
            "Cached tokens of prompts by the split of KV memory",
            share,
            "share of the prompts' tokens",
            {**_both(by_share, "hit_rate"), "generator, LMCache": _line(by_share, "generator", "lmcache_hit_rate")},
        ),
        "recomputed.svg": line_chart(
            "Tokens computed again, by the split of KV memory",
            share,
            "tokens computed again for a search",
            {
                name: [(at, row[role]["recomputed_tokens"] / row["searches"]) for at, row in by_share.items()]
                for role, name in ROLES.items()
            },
        ),
        "preemptions.svg": line_chart(
            "Preempted and held back requests of the generator, by the split of KV memory",
            share,
            "for a search",
            {
                name: [(at, row["generator"][what] / row["searches"]) for at, row in by_share.items()]
                for what, name in {"preemptions": "preempted", "held_back": "held back"}.items()
            },
        ),
    }
    kv_use = of(base, most)["kv_use"]
    found["kv_use.svg"] = line_chart(
        f"KV blocks in use, {most} searches at once",
        "seconds",
        "share of the engine's blocks",
        {name: [(each[0], each[column]) for each in kv_use] for column, name in enumerate(ROLES.values(), 1)},
    )
    for role, name in ROLES.items():
        lines = {f"{at} at once": _steps(row[role], "engine_step_tokens") for at, row in by_clients.items()}
        found[f"step_tokens_{role}.svg"] = line_chart(
            f"Tokens in an engine step, {name}", "tokens, at most", "share of the steps", lines, doubles=True
        )
    return found


def write_charts(rows: Sequence[Row], sweeps: Sweeps, directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, svg in charts(rows, sweeps).items():
        paths.append(directory / name)
        paths[-1].write_text(svg, encoding="utf-8")
    return paths


def compared(rows: Sequence[Row], sweeps: Sweeps) -> dict[str, float]:
    """Throughput as configured over that without, by comparison."""
    base = {**sweeps.base._asdict(), "clients": sweeps.clients[-1]}
    rates = {row["side"]: row["searches_per_s"] for row in rows if {**base, "side": row["side"]}.items() <= row.items()}
    return {
        name: round(rates[AS_CONFIGURED] / rates[f"without {name}"], 3)
        for name in sweeps.comparisons
        if f"without {name}" in rates
    }


def _line(rows: Mapping[Any, Row], *path: str) -> Line:
    found: list[tuple[float, float]] = []
    for at, row in rows.items():
        value: Any = row
        for name in path:
            value = value[name]
        found.append((at, value))
    return found


def _both(rows: Mapping[Any, Row], figure: str) -> dict[str, Line]:
    return {name: _line(rows, role, figure) for role, name in ROLES.items()}


def _steps(figures: Mapping[str, Any], name: str) -> Line:
    histogram = figures["histograms"][name]
    total = max(sum(histogram["counts"]), 1)
    counts = histogram["counts"][: len(histogram["boundaries"])]
    return [(float(at), count / total) for at, count in zip(histogram["boundaries"], counts, strict=True)]
