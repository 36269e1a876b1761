"""What a dashboard of ours consists of, and how it becomes Grafana's JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.builders import prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    GridPos,
    VariableOption,
    VariableRefresh,
)

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS, WIDTH, HEIGHT = 3, 8, 8
"""Panels in a line, and a panel's size: Grafana's grid is 24 wide."""


@dataclass(frozen=True)
class Query:
    """A PromQL query. ``{app}`` and ``{app, label="value"}`` select the application that the reader has chosen,
    ``[rate]`` is the range that Grafana finds right for the screen."""

    written: str
    legend: str

    @property
    def expr(self) -> str:
        chosen = self.written.replace("{app", '{application=~"$application"')
        return chosen.replace("[rate]", "[$__rate_interval]")


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    """Grafana's name of the unit."""
    description: str
    queries: tuple[Query, ...]
    id: int | None = None
    """Set where Ray's dashboard asks for the panel by this number; otherwise counted from 100."""


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]


def panel(title: str, unit: str, description: str, *queries: tuple[str, str], id: int | None = None) -> Panel:  # noqa: A002
    """A panel of these queries, each written with its legend."""
    return Panel(title, unit, description, tuple(Query(*query) for query in queries), id)


def quantiles(metric: str, by: str = "", unit: str = "s") -> tuple[tuple[str, str], ...]:
    """Median and 95% of one of our histograms; ``by`` is a label whose values get lines of their own."""
    labels, legend = (f"le, {by}", f" {{{{{by}}}}}") if by else ("le", "")
    return tuple(
        (f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{app}}[rate])))", f"{name}{legend}")
        for q, name in ((0.5, "median"), (0.95, "95%"))
    )


def as_json(dashboard: Dashboard) -> str:
    builder = (
        grafana.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.description)
        .tags(["banyan"])
        .readonly()
        .refresh("10s")
        .time("now-1h", "now")
        .with_variable(grafana.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            grafana.QueryVariable("application")
            .label("Application")
            .datasource(SOURCE)
            .query("label_values(ray_banyan_search_places, application)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .all_value(".*")
            .multi(True)
            .current(VariableOption(selected=True, text="All", value="$__all"))
        )
        .link(
            grafana.DashboardLink("Banyan")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["banyan"])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
        )
    )
    for index, (number, each) in enumerate(_numbered(dashboard.panels)):
        position = GridPos(h=HEIGHT, w=WIDTH, x=index % COLUMNS * WIDTH, y=index // COLUMNS * HEIGHT)
        builder = builder.with_panel(_panel(each).id(number).grid_pos(position))
    return json.dumps(builder.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _numbered(panels: Sequence[Panel]) -> Iterator[tuple[int, Panel]]:
    for index, each in enumerate(panels):
        yield (100 + index if each.id is None else each.id), each


def _panel(written: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(written.title)
        .description(written.description)
        .unit(written.unit)
        .datasource(SOURCE)
        .min(0)
        .fill_opacity(8)
    )
    for index, query in enumerate(written.queries):
        target = (
            prometheus.Dataquery().expr(query.expr).legend_format(query.legend).range().ref_id(chr(ord("A") + index))
        )
        built = built.with_target(target.datasource(SOURCE))
    return built
