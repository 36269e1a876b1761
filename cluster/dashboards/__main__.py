"""Writes the dashboards as Grafana reads them, one file each. Wants ``grafana-foundation-sdk``, a requirement of
development only."""

from pathlib import Path

from cluster.dashboards.boards import DASHBOARDS
from cluster.dashboards.layout import as_json

FOLDER = Path(__file__).with_name("grafana")


def main() -> None:
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.uid}.json").write_text(as_json(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
