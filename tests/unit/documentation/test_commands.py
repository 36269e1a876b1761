"""The commands in README and docs are valid: the programs exist and accept the options as written.

Nothing is run here; `tests/commands`, `tests/clients` and `tests/serve` run them.
"""

import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from cluster.cli.main import app
from cluster.evaluation.search_field import search_field
from tests.unit.documentation.pages import ROOT, Block, blocks, spans

WRITTEN_BY_READERS = {"my_config.yaml", "with_keys.yaml", "api.keys"}
PROGRAM = re.compile(r"^(?:\.venv/bin/)?(banyan|make|ray|serve|python|pip|curl|lm-eval|grep|\$EDITOR|\.)(?: |$)")
ELLIPSIS = "…"


@cache
def targets() -> dict[str, str]:
    """Targets of the Makefile, with their recipes."""
    text = (ROOT / "Makefile").read_text()
    return dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)*)", text, re.MULTILINE))


def ray_command() -> Any:
    from ray.scripts.scripts import cli

    return cli


def serve_command() -> Any:
    from ray.serve.scripts import cli

    return cli


COMMANDS: Mapping[str, Callable[[], Any]] = {
    "banyan": lambda: typer.main.get_command(app),
    "ray": ray_command,
    "serve": serve_command,
}


def banyan(words: Sequence[str]) -> None:
    parsed = parse(COMMANDS["banyan"](), words)
    strategies = parsed.get("strategy") or []
    for strategy in [strategies] if isinstance(strategies, str) else strategies:
        search_field(strategy, parsed["n"])
    if isinstance(config := parsed.get("config"), Path):
        assert_file(str(config))


def ray(words: Sequence[str]) -> None:
    if words[:2] == ["job", "submit"]:
        assert words[2] == "--"
        check(" ".join(words[3:]))
    else:
        parse(ray_command(), words)


def serve(words: Sequence[str]) -> None:
    parsed = parse(serve_command(), words)
    for name in ("config_file_name", "config_or_import_path"):
        if name in parsed:
            assert_file(str(parsed[name]))


def make(words: Sequence[str]) -> None:
    [target, *variables] = words
    assert target in targets()
    for variable in variables:
        name, equals, value = variable.partition("=")
        assert equals
        assert f"$({name})" in targets()[target] or f"$(if $({name})" in targets()[target]
        if name == "CONFIG":
            assert_file(value)


def python(words: Sequence[str]) -> None:
    if words[0] != "-m":
        files(words)
        return
    module, arguments = run_as_module(words)
    parse(command_of(module), arguments)
    for word in arguments:
        if word.endswith(".yaml"):
            assert_file(word)


def pip(words: Sequence[str]) -> None:
    """An installation of this checkout, with extras that it has."""
    assert words[0] == "install"
    files(words)
    extras = re.fullmatch(r"\.(?:\[([a-z,]+)\])?", words[-1])
    assert extras
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(filter(None, [extras[1]])) <= project["optional-dependencies"].keys()


def run_as_module(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Our module that ``python -m`` runs, and its arguments."""
    [flag, module, *arguments] = words
    assert flag == "-m"
    spec = find_spec(module)
    assert spec is not None
    return (f"{module}.__main__" if spec.submodule_search_locations else module), arguments


def command_of(module: str) -> Any:
    """The click command of a module."""
    program = import_module(module)
    if isinstance(made := getattr(program, "app", None), typer.Typer):
        return typer.main.get_command(made)
    only = typer.Typer()
    only.command()(program.main)
    return typer.main.get_command(only)


def files(words: Sequence[str]) -> None:
    """Checks that the project's files which the words name exist."""
    for word in words:
        if (ROOT / word).parent != ROOT and (ROOT / word.split("/")[0]).is_dir():
            assert_file(word)


def sourced(words: Sequence[str]) -> None:
    [file] = words
    assert file == ".venv/bin/activate" or (ROOT / file).is_file()


CHECKS: Mapping[str, Callable[[Sequence[str]], None]] = {
    "banyan": banyan,
    "ray": ray,
    "serve": serve,
    "make": make,
    "python": python,
    "pip": pip,
    ".": sourced,
    "lm-eval": files,
    "$EDITOR": files,
    "curl": lambda words: None,  # test_bodies.py checks the body
    "grep": lambda words: None,
}


class Wrong(Exception):
    """The command would be refused."""


def check(line: str) -> None:
    """
    Raises:
        Wrong: the command would be refused.
    """
    try:
        program = PROGRAM.match(line)
        assert program, "a program that is not known here"
        words = shlex.split(line, comments=True)[1:]
        CHECKS[program[1]](words[: words.index(">")] if ">" in words else words)
    except Exception as error:  # each of these programs has its own syntax
        raise Wrong(f"{line}: {error}") from error


def parse(command: Any, words: Sequence[str]) -> dict[str, Any]:
    """Values of all options and arguments of the innermost click command."""
    name, *rest = ["", *words]
    while hasattr(command, "commands"):
        [name, *rest] = rest
        command = command.commands[name]
    values: dict[str, Any] = command.make_context(name, rest).params
    return values


def assert_file(name: str) -> None:
    assert name in WRITTEN_BY_READERS or (ROOT / name).exists(), name


def lines(block: Block) -> list[str]:
    """The commands of a block: its lines, joined where a quote or a backslash continues one."""
    found, begun = [], ""
    for line in block.text.splitlines():
        begun = f"{begun}\n{line}" if begun else line
        try:
            shlex.split(begun, comments=True)
        except ValueError:  # inside an open quote
            continue
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        found.append(begun)
        begun = ""
    assert not begun
    return [line for line in found if line.strip()]


SHELL = [(block, line) for block in blocks() if block.language == "sh" for line in lines(block)]
SHOWN = [
    (block, line[2:])
    for block in blocks()
    if not block.language
    for line in block.text.splitlines()
    if line.startswith("$ ")
]
"""Commands in blocks that also show their output."""
MENTIONED = [span for span in spans() if PROGRAM.match(span.text) and " " in span.text and ELLIPSIS not in span.text]


def test_commands_in_blocks_are_valid() -> None:
    assert SHELL
    assert SHOWN
    wrong = []
    for block, line in SHELL + SHOWN:
        try:
            check(line)
        except Wrong as error:
            wrong.append(f"{block}: {error}")
    assert wrong == []


def test_commands_in_the_text_have_the_options_they_show() -> None:
    """They may lack required arguments, and have placeholders in capitals."""
    assert MENTIONED
    wrong = []
    for span in MENTIONED:
        try:
            assert_shown(span.text)
        except Exception as error:  # each of these programs has its own syntax
            wrong.append(f"{span}: {error!r}")
    assert wrong == []


def assert_shown(text: str) -> None:
    """Checks that the programs exist and have the options."""
    program, *words = shlex.split(text)
    if program == "make":
        assert words[0] in targets()
    elif program == "python":
        module, words = run_as_module(words)
        if words:
            assert_has(command_of(module), words)
    elif program in COMMANDS:
        assert_has(COMMANDS[program](), words)


def assert_has(command: Any, words: Sequence[str]) -> None:
    """Checks that the command has the subcommands and options among the words."""
    rest = list(words)
    while hasattr(command, "commands") and rest:
        command = command.commands[rest.pop(0)]
    known = {name for each in command.params for name in each.opts}
    before = rest[: rest.index("--")] if "--" in rest else rest
    assert {word.partition("=")[0] for word in before if word.startswith("--")} <= known


def test_invalid_commands_are_found() -> None:
    """One of each kind, so that these tests cannot pass by finding nothing."""
    wrong = [
        "banyan solve --frobnicate 1 'What is 1 + 1?'",
        "banyan eval --problems problems.jsonl --strategy beem_search",
        "banyan plan --config nowhere.yaml",
        "make tea",
        "make run COLOUR=red",
        "serve deploy nowhere.yaml",
        "serve shutdown --slowly",
        "ray job submit -- banyan brew",
        "ray start --tail",
        "python -m benchmarks.nothing",
        "python -m benchmarks.kv_clamp --frobnicate",
        "wget http://127.0.0.1:8000",
    ]
    for line in wrong:
        with pytest.raises(Wrong):
            check(line)
