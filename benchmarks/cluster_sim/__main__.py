"""The cluster on a virtual clock; see the package.

python -m benchmarks.cluster_sim curves        measures the engines of this machine
"""

from typing import Annotated

import typer
from rich.console import Console

from benchmarks.record import write_result
from cluster.launch.environment import ensure_token, set_environment
from deployments.config import AppConfig

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
    config = AppConfig.model_validate({"cache": {"enabled": False}})
    path = write_result("batch_curves", measured(config, problems, seconds))
    console.print(f"kept in {path.relative_to(path.parents[2])}")


@app.command()
def calls(seconds: Annotated[float, typer.Option(min=1, max=60, help="Of each measurement.")] = 5.0) -> None:
    """What a controller costs, and how many searches it serves, before engines that cost nothing."""
    from benchmarks.cluster_sim.calls import measured

    set_environment()  # before Ray is imported
    ensure_token()
    path = write_result("controller_calls", measured(seconds))
    console.print(f"kept in {path.relative_to(path.parents[2])}")


@app.callback()
def main() -> None:
    pass


if __name__ == "__main__":
    app()
