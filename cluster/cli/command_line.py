"""The command line in any terminal or pipe: arguments that begin with a minus, output in any encoding."""

import io
import sys
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup


class CommandLine(TyperGroup):
    """The group of all commands."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command that was typed.

        What the terminal's or pipe's encoding lacks is written as Python writes it in a string: a model may answer in
        any script.
        """
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command. An option that does not exist may be an argument: the error says how that is typed."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            called = getattr(error, "ctx", None)
            if called is not None and not getattr(error, "possibilities", True):
                arguments = [
                    each.metavar or each.name for each in called.command.params if isinstance(each, TyperArgument)
                ]
                usage = " ".join([called.command_path, "[OPTIONS] --", *(str(each).upper() for each in arguments)])
                if arguments:
                    error.message += f"\nAn argument that begins with a minus must follow --: {usage}"
            raise


def as_typed(argument: str) -> str:
    """Returns an argument in UTF-8, in which it was typed: in the locale C, Python reads its bytes as surrogates.

    Raises:
        typer.BadParameter: it is not UTF-8.
    """
    try:
        return argument.encode(errors="surrogateescape").decode()
    except UnicodeError:
        raise typer.BadParameter("it is not UTF-8") from None
