"""How a command fails: with a message on stderr and an exit status, without a traceback.

0 done · 1 the work failed · 2 an argument or a file cannot be used · 130 interrupted
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from cluster.client.errors import ClientError, Refused, Unreachable
from cluster.client.printable import printable
from cluster.evaluation.problem_files import ProblemFileError
from cluster.evaluation.search_field import SearchFieldError
from cluster.jobs.outputs import OutputError
from cluster.launch.errors import LaunchError
from cluster.training.errors import TrainingError

MAX_BAD_LINES = 20
OF_ENGINES = frozenset({"huggingface_hub", "safetensors", "tokenizers", "torch", "transformers"})
"""Packages that commands import and an installation without engines lacks."""


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turns errors that a user can act on into a message and an exit status."""
    try:
        yield
    except ProblemFileError as error:
        refuse("\n".join([str(error), *bad_lines(error.bad_lines)]))
    except (SearchFieldError, OutputError, TrainingError) as error:
        refuse(str(error))
    except Unreachable as error:
        fail(f"{error}\nStart Banyan with:  make run\nor name another endpoint with --url")
    except Refused as error:
        hint = "\nGive the endpoint's key with --api-key or BANYAN_API_KEY" if error.status == 401 else ""
        fail(f"{error}{hint}")
    except (ClientError, LaunchError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        if error.name not in OF_ENGINES:
            raise
        fail(f"this command needs {error.name}, which comes with engines: `make setup`, or pip install '.[cpu]'")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def fail(message: str, status: int = 1) -> NoReturn:
    typer.echo(f"banyan: {printable(message)}", err=True)
    raise typer.Exit(status)


def refuse(message: str) -> NoReturn:
    fail(message, 2)


def unwritten(path: Path, error: OSError) -> str:
    """Message for a file that could not be written."""
    return f"cannot write {path}: {error.strerror or error}"


def bad_lines(lines: tuple[object, ...]) -> list[str]:
    """Text of the first bad lines, one each, and the number of the others."""
    more = [f"  and {len(lines) - MAX_BAD_LINES:,} more"] if len(lines) > MAX_BAD_LINES else []
    return [f"  {line}" for line in lines[:MAX_BAD_LINES]] + more
