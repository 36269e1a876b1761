"""The ``banyan`` command: serve, keys, plan, check-backend, problems, strategies, solve, tree, eval, check-prm,
check-select, train-prm, batch."""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cluster.cli.command_line import CommandLine, as_typed
from cluster.cli.defaults import DEFAULT_CONFIG, DEFAULT_URL, config_file
from cluster.cli.failures import plain_failures, refuse
from cluster.evaluation.code_test import GRADING_FIELDS
from cluster.evaluation.problem_files import MAX_PROBLEMS, OnBadLine
from cluster.jobs.formats import ExportFormat, InputKind, ServiceTier
from cluster.training.settings import MAX_EPOCHS, MAX_LAYERS, MAX_TOKENS
from deployments.embedded.problems import LEVELS, Split, draw_problems
from kvstore.memory.device_memory import TOKENS, VERIFIER_TOKENS

MAX_DRAWN = 10_000
MAX_N = 256
MAX_SEED = 2**53 - 1
MAX_SECONDS = 3_600

app = typer.Typer(
    cls=CommandLine,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Tree search for LLM reasoning, guided by a process reward model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Key = Annotated[str | None, typer.Option(envvar="BANYAN_API_KEY", help="API key of the endpoint.", show_default=False)]
N = Annotated[int, typer.Option(min=1, max=MAX_N, help="Number of paths, for strategies that take one.")]
Tokens = Annotated[
    float, typer.Option(min=0.001, max=1e12, help="KV tokens of the generator, relative to --prm-tokens.")
]
Url = Annotated[
    str | None,
    typer.Option(
        help=f"URL of the endpoint. Unset: this Ray cluster's application, else {DEFAULT_URL}, else it starts one.",
        show_default=False,
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, max=MAX_SECONDS, help="Timeout of one request, seconds.")]
BaseSeed = Annotated[
    int, typer.Option(min=0, max=MAX_SEED, help="Base seed; the seed of each problem is derived from it.")
]
BadLine = Annotated[OnBadLine, typer.Option(help="What to do with an unusable line.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_PROBLEMS, help="Use only this many problems, from the first.", show_default=False),
]
ChecksField = Annotated[
    str | None,
    typer.Option(
        help="Field of the problems with the checks of their searches (search.checks). Never one that grades.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help=f"Serve config file. Unset: {DEFAULT_CONFIG}, if it exists.", show_default=False),
]

BackendKeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the backend's key. Unset: BANYAN_BACKEND_KEY, if it is set.", show_default=False),
]


@app.command()
def serve(
    config: Config = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Serve a model in front of this OpenAI-compatible server instead, without engines and config file.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --backend: its name of the model. Unset: its only one.", show_default=False),
    ] = None,
    backend_key_file: BackendKeyFile = None,
    host: Annotated[str | None, typer.Option(help="Bind address; overrides the file.", show_default=False)] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="HTTP port; overrides the file.", show_default=False)
    ] = None,
    dashboard: Annotated[
        bool | None,
        typer.Option(
            "--dashboard/--no-dashboard",
            help="Whether Ray has its dashboard. Unset: not with --backend.",
            show_default=False,
        ),
    ] = None,
    api_key: Key = None,
) -> None:
    """Serve in the foreground until Ctrl-C."""
    from cluster.cli.serve import Backend, Options, serve_until_interrupted

    if backend is None and (model is not None or backend_key_file is not None):
        refuse("--model and --backend-key-file are about a --backend; a config file says generator.model")
    if backend is not None and config is not None:
        refuse("--backend takes no --config: set generator.url in that file instead")
    with plain_failures():
        chosen = None if backend is None else Backend(backend, model, backend_key_file)
        shown = (backend is None) if dashboard is None else dashboard
        options = Options(None if chosen else config_file(config), chosen, host, port, api_key, shown)
        serve_until_interrupted(options, Console(file=sys.stdout))


@app.command()
def keys(config: Config = None) -> None:
    """Print the config with its API keys, as digests: `serve deploy` of it changes keys without a restart."""
    import yaml

    from cluster.launch.config_file import read_config
    from cluster.launch.key_records import with_key_records

    with plain_failures():
        typer.echo(
            yaml.safe_dump(with_key_records(read_config(config_file(config), keys_to_come=True)), sort_keys=False),
            nl=False,
        )


@app.command()
def plan(
    config: Config = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory that the engines share, such as 24GiB. Unset: this machine's GPU.", show_default=False
        ),
    ] = None,
    working: Annotated[str, typer.Option(help="Memory of each engine besides weights and KV.")] = "2GiB",
    generator_tokens: Tokens = TOKENS["generator"],
    prm_tokens: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1e12,
            help="KV tokens of the reward model, relative to --generator-tokens.",
            show_default=f"{TOKENS['prm']}, or {VERIFIER_TOKENS} where it writes critiques",
        ),
    ] = None,
) -> None:
    """Split the memory of one device between the generator and the reward model."""
    from cluster.cli.plan import show_plan

    with plain_failures():
        tokens = {"generator": generator_tokens} | ({} if prm_tokens is None else {"prm": prm_tokens})
        show_plan(config_file(config), memory, working, tokens, Console(file=sys.stdout))


@app.command()
def check_backend(
    url: Annotated[str, typer.Argument(help="URL of a server of OpenAI's API: http://host:8000, or with /v1.")],
    model: Annotated[
        str | None, typer.Option(help="The server's name of the model. Unset: its only one.", show_default=False)
    ] = None,
    backend_key_file: BackendKeyFile = None,
) -> None:
    """Ask a server of OpenAI's API, by small requests, what it can do for searches."""
    from cluster.cli.check_backend import show_backend

    with plain_failures():
        show_backend(url, model, backend_key_file, Console(file=sys.stdout))


@app.command()
def problems(
    n: Annotated[int, typer.Option(min=1, max=MAX_DRAWN, help="Number of problems.")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the problems.")] = 0,
    level: Annotated[
        int | None,
        typer.Option(
            min=min(LEVELS), max=max(LEVELS), help="Level of difficulty. Unset: all levels in turn.", show_default=False
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="One of three disjoint sets.")] = Split.TEST,
    output: Annotated[Path | None, typer.Option(help="Output file. Unset: the terminal.", show_default=False)] = None,
) -> None:
    """Write arithmetic problems as JSON lines: problem, answer, level, unique_id."""
    lines = (json.dumps(problem.as_json()) for problem in itertools.islice(draw_problems(split, seed, level), n))
    if output is None:
        for line in lines:
            typer.echo(line)
        return
    try:
        output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        refuse(f"cannot write {output}: {error.strerror or error}")
    typer.echo(f"{n:,} problems in {output}", err=True)


@app.command()
def strategies(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this strategy.", show_default=False)] = None,
) -> None:
    """List the strategies, or show the settings of one."""
    from cluster.cli.strategies import show_strategies
    from search.strategies.catalog import STRATEGIES

    if name is not None and name not in STRATEGIES:
        refuse(f"unknown strategy {name!r}; available: {', '.join(STRATEGIES)}")
    show_strategies(Console(file=sys.stdout), name)


@app.command()
def solve(
    question: Annotated[str, typer.Argument(help="The question to solve.", show_default=False, callback=as_typed)],
    url: Annotated[str, typer.Option(help="URL of the endpoint.")] = DEFAULT_URL,
    strategy: Annotated[
        str, typer.Option(help="Name, alias such as beam-64, or name with settings: dvts:m=8,budget.tokens=1000.")
    ] = "beam_search",
    n: N = 16,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_SEED, help="Seed; the same seed grows the same tree.", show_default=False),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            help="Preset of the endpoint (low, medium, high) instead of --strategy and --n.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the tree.")] = False,
    timeout: Timeout = 600,
    api_key: Key = None,
) -> None:
    """Solve one question and watch the tree grow."""
    from cluster.cli.solve import solve as solve_question
    from cluster.client import Client, Question
    from cluster.evaluation.search_field import search_field

    if effort is not None and (strategy, n) != ("beam_search", 16):
        refuse("--effort selects a complete search: leave out --strategy and --n")

    async def ask() -> None:
        search = search_field(strategy, n) if effort is None else {}
        wanted = Question(question, search, seed=seed, effort=effort)
        async with Client(url, api_key, timeout) as client:
            await solve_question(client, wanted, Console(file=sys.stdout), as_json)

    with plain_failures():
        asyncio.run(ask())


@app.command()
def tree(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="An export of the web page, a reply of /v1/search, the events of a stored search, or the results of "
            "`banyan batch --trees`.",
            show_default=False,
        ),
    ],
    line: Annotated[
        int | None, typer.Option(min=1, help="For results: line number of the input.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Output file. Unset: FILE with the suffix .html.", show_default=False)
    ] = None,
) -> None:
    """Write a search as a web page: one file that needs no server."""
    from cluster.cli.tree import write_tree

    target = _writable(source.with_suffix(".html") if output is None else output)
    _check_different([source, target], "FILE and --output")
    write_tree(source, line, target)
    typer.echo(f"wrote {target}", err=True)


@app.command("eval")
def evaluate(
    problems: Annotated[
        Path,
        typer.Option(
            help="JSON lines with `problem` and `answer`, or records of HumanEval or MBPP.", show_default=False
        ),
    ],
    strategy: Annotated[
        list[str],
        typer.Option(
            help="Name, alias such as beam-64, or name with settings: dvts:m=8,budget.tokens=1000. Repeatable.",
            show_default=False,
        ),
    ],
    n: N = 16,
    seed: BaseSeed = 0,
    url: Url = None,
    config: Config = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write a row for every problem to this file.", show_default=False)
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write every tree with training values to this file, as JSON lines.", show_default=False),
    ] = None,
    kv: Annotated[bool, typer.Option("--kv", help="Also report the KV tokens that each search needs.")] = False,
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Concurrent problems.")] = 16,
    on_bad_line: BadLine = OnBadLine.REFUSE,
    limit: Limit = None,
    checks_field: ChecksField = None,
    timeout: Timeout = 600,
    api_key: Key = None,
) -> None:
    """Measure strategies on a file of problems: accuracy with confidence intervals, and cost."""
    from cluster.cli.evaluate import EvaluationOptions, run_evaluation
    from cluster.evaluation.loop import Plan

    files = [problems, *(_writable(file) for file in (json_file, export) if file is not None)]
    _check_different(files, "--problems, --json and --export")
    options = EvaluationOptions(
        problems=problems,
        strategies=tuple(dict.fromkeys(strategy)),
        plan=Plan(n, seed, in_flight, trees=export is not None, kv_usage=kv),
        on_bad_line=on_bad_line,
        limit=limit,
        checks_field=_no_grading_field(checks_field),
        json_file=json_file,
        export_file=export,
        timeout_s=timeout,
        api_key=api_key,
    )
    with plain_failures():
        run_evaluation(options, url, config, Console(file=sys.stdout))


@app.command("check-prm")
def check_prm(
    solutions: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Labelled solutions: ProcessBench, PRM800K, exported trees, or JSON lines "
            "with question, steps, and correct or labels.",
            show_default=False,
        ),
    ],
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="Rewards below this predict a mistake.")] = 0.5,
    url: Url = None,
    config: Config = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the figures and all rewards to this file, as one JSON object.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write reliability diagram and ROC curve to this file, as SVG.", show_default=False),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(
            help="Write the card to this file: how a vote should use the rewards (prm.card).", show_default=False
        ),
    ] = None,
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Concurrent solutions.")] = 16,
    on_bad_line: BadLine = OnBadLine.REFUSE,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_PROBLEMS, help="Use only this many solutions, from the first.", show_default=False),
    ] = None,
    timeout: Timeout = 600,
    api_key: Key = None,
) -> None:
    """Measure a reward model on labelled solutions: steps, first mistakes, calibration, outcomes, speed; and
    what it is worth in a vote."""
    from cluster.cli.check_prm import CheckOptions, run_check

    files = [solutions, *(_writable(file) for file in (output, plot, card) if file is not None)]
    _check_different(files, "FILE, --output, --plot and --card")
    options = CheckOptions(
        solutions=solutions,
        threshold=threshold,
        in_flight=in_flight,
        on_bad_line=on_bad_line,
        limit=limit,
        output=output,
        plot_file=plot,
        card=card,
        timeout_s=timeout,
        api_key=api_key,
    )
    with plain_failures():
        run_check(options, url, config, Console(file=sys.stdout))


@app.command("check-select")
def check_select(
    problems: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON lines with `problem` and `answer`.", show_default=False)
    ],
    strategy: Annotated[
        str, typer.Option(help="Strategy with `contested`, with settings such as select:readers=8.")
    ] = "select",
    n: N = 8,
    seed: BaseSeed = 0,
    url: Url = None,
    config: Config = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the figures of every problem to this file, as JSON.", show_default=False)
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(help="Write the card to this file (controller.reader_card).", show_default=False),
    ] = None,
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Concurrent problems.")] = 16,
    on_bad_line: BadLine = OnBadLine.REFUSE,
    limit: Limit = None,
    timeout: Timeout = 600,
    api_key: Key = None,
) -> None:
    """Measure whether the model picks right when it reads its own solutions, against their vote, where that is
    contested."""
    from cluster.cli.check_select import ReaderCheckOptions, run_reader_check
    from cluster.evaluation.loop import Plan
    from cluster.evaluation.reader_check import ReadingPlan

    files = [problems, *(_writable(file) for file in (output, card) if file is not None)]
    _check_different(files, "FILE, --output and --card")
    options = ReaderCheckOptions(
        problems=problems,
        reading=ReadingPlan(strategy, Plan(n, seed, in_flight)),
        on_bad_line=on_bad_line,
        limit=limit,
        output=output,
        card=card,
        timeout_s=timeout,
        api_key=api_key,
    )
    with plain_failures():
        run_reader_check(options, url, config, Console(file=sys.stdout))


@app.command()
def batch(
    given: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="Problems (JSON lines or Parquet), or an OpenAI batch file.", show_default=False
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Results, JSON lines. If the file exists, the job resumes.", show_default=False
        ),
    ],
    strategy: Annotated[
        str, typer.Option(help="For problems: name, alias such as beam-64, or name with settings: dvts:m=8.")
    ] = "beam_search",
    n: N = 16,
    seed: BaseSeed = 0,
    url: Url = None,
    config: Config = None,
    kind: Annotated[
        InputKind | None,
        typer.Option("--input-format", help="Input format. Unset: detected from the first line.", show_default=False),
    ] = None,
    trees: Annotated[bool, typer.Option("--trees", help="Include whole trees in the results.")] = False,
    parquet: Annotated[
        Path | None, typer.Option(help="Also write the results to this file, as Parquet.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write the summary to this file, as one JSON object.", show_default=False),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write training data to this file; implies --trees.", show_default=False)
    ] = None,
    export_format: Annotated[ExportFormat, typer.Option(help="Format of the training data.")] = ExportFormat.BANYAN,
    in_flight: Annotated[
        int, typer.Option(min=1, max=4096, help="Maximum concurrent requests; the service may allow fewer.")
    ] = 1024,
    service_tier: Annotated[
        ServiceTier, typer.Option(help="Service tier of requests that name none; flex yields to other clients.")
    ] = ServiceTier.FLEX,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry requests that failed although their line is valid.")
    ] = False,
    checks_field: ChecksField = None,
    timeout: Timeout = 600,
    api_key: Key = None,
) -> None:
    """Run a file of problems or requests: results as they arrive, resumable, with a summary."""
    from cluster.cli.batch import BatchOptions, run_batch
    from cluster.evaluation.search_field import search_field
    from cluster.jobs.outputs import paths
    from cluster.jobs.run import Settings

    written = [*paths(output), *(file for file in (parquet, json_file, export) if file is not None)]
    files = [given, *map(_writable, written)]
    _check_different(files, "IN, OUT, the files beside OUT, --parquet, --json and --export")
    with plain_failures():
        keeps_trees = trees or export is not None
        search = search_field(strategy, n) | ({"logprobs": True} if keeps_trees else {})
        options = BatchOptions(
            given=given,
            output=output,
            settings=Settings(strategy, search, seed, keeps_trees, service_tier),
            kind=kind,
            in_flight=in_flight,
            retry_failed=retry_failed,
            json_file=json_file,
            parquet_file=parquet,
            export_file=export,
            export_format=export_format,
            checks_field=_no_grading_field(checks_field),
            timeout_s=timeout,
            api_key=api_key,
        )
        run_batch(options, url, config, Console(file=sys.stdout))


@app.command("train-prm")
def train_prm(
    given: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="Results of `banyan batch --trees`, an export, solutions (question, steps, correct), or problems with "
            "answers, which are solved first.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Directory of the model. If it exists, training resumes.", show_default=False
        ),
    ],
    backbone: Annotated[str, typer.Option(help="Model directory or hub id to start from.")] = "embedded:generator",
    layers: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_LAYERS, help="Number of top layers to train with the head; 0 trains the head alone."
        ),
    ] = 0,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_LAYERS,
            help="Number of layers: the first ones of the backbone, or all and new ones on top. Unset: the backbone's.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            min=64, max=MAX_TOKENS, help="Maximum tokens; longer solutions are cut after the last step that fits."
        ),
    ] = 4096,
    held_out: Annotated[
        float, typer.Option(min=0.01, max=0.5, help="Fraction of the problems held out for evaluation.")
    ] = 0.2,
    epochs: Annotated[int, typer.Option(min=1, max=MAX_EPOCHS, help="Maximum number of epochs.")] = 30,
    patience: Annotated[
        int, typer.Option(min=1, max=MAX_EPOCHS, help="Stop after this many epochs without a lower held-out loss.")
    ] = 3,
    learning_rate: Annotated[
        float | None,
        typer.Option(min=1e-8, max=1.0, help="Learning rate. Unset: 0.1 / width.", show_default=False),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads; their number affects rounding.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed; the same seed gives the same weights.")] = 0,
    strategy: Annotated[str, typer.Option(help="For problems: strategy that solves them.")] = "self_consistency",
    n: Annotated[int, typer.Option(min=2, max=MAX_N, help="For problems: solutions per problem.")] = 16,
    url: Url = None,
    config: Config = None,
    in_flight: Annotated[int, typer.Option(min=1, max=4096, help="For problems: maximum concurrent requests.")] = 1024,
    timeout: Timeout = 600,
    api_key: Key = None,
) -> None:
    """Train a reward model on your own problems: it learns which steps lead to right answers."""
    from pydantic import ValidationError

    from cluster.cli.batch import BatchOptions
    from cluster.evaluation.search_field import search_field
    from cluster.jobs.run import Settings
    from cluster.training.settings import TrainingPaths, TrainingSettings

    try:
        settings = TrainingSettings(
            backbone=backbone,
            layers=layers,
            depth=depth,
            max_tokens=max_tokens,
            held_out=held_out,
            epochs=epochs,
            patience=patience,
            learning_rate=learning_rate,
            seed=seed,
            threads=threads,
            device=device,
        )
    except ValidationError as error:
        fault = error.errors()[0]
        refuse(f"--{'-'.join(map(str, fault['loc'])).replace('_', '-')}: {fault['msg']}")
    with plain_failures():
        from cluster.cli.train_prm import TrainingOptions, run_training  # torch, which may not be installed

        search = search_field(strategy, n) | {"logprobs": True}
        solving = BatchOptions(
            given=given,
            output=TrainingPaths(output).solved,
            settings=Settings(strategy, search, seed, trees=True),
            in_flight=in_flight,
            timeout_s=timeout,
            api_key=api_key,
        )
        run_training(TrainingOptions(given, output, settings, solving, url, config), Console(file=sys.stdout))


def _no_grading_field(name: str | None) -> str | None:
    """Returns the name of a field of problems, or refuses it if that field grades."""
    if name in GRADING_FIELDS:
        refuse(f"--checks-field {name}: this field grades, so the search must not see it")
    return name


def _check_different(files: Sequence[Path], names: str) -> None:
    """Ends the command if two of the files are one. ``names``: what the command's help calls them."""
    if len({os.path.realpath(file) for file in files}) < len(files):
        refuse(f"{names} must be different files")


def _writable(path: Path) -> Path:
    """Returns the path, or refuses it if no file can be written there."""
    if not path.absolute().parent.is_dir():
        refuse(f"cannot write {path}: no such directory")
    if path.is_dir():
        refuse(f"cannot write {path}: it is a directory")
    return path


if __name__ == "__main__":
    app()
