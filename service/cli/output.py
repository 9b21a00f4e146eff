"""What commands print, and how they end."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from raysync.spec import JobSpec

EXIT = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 130}
"""How a command that waits for a job ends."""
_REFUSED, _UNREACHABLE = 2, 3

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
JobId = Annotated[str, typer.Argument(help="The job's id, as `raysync list` shows it.")]


def print_json(record: Any) -> None:
    """Print one JSON object on a line."""
    sys.stdout.write(json.dumps(record, default=str) + "\n")
    sys.stdout.flush()


def print_model(model: Any) -> None:
    """Print a pydantic model as JSON."""
    sys.stdout.write(model.model_dump_json(by_alias=True) + "\n")
    sys.stdout.flush()


class SilenceNote:
    """Says once on stderr that a stream has broken off, and once that it goes on."""

    def __init__(self) -> None:
        self._is_there = True

    def __call__(self, is_there: bool) -> None:
        """Note whether the service answers."""
        if is_there != self._is_there:
            word = "the service answers again" if is_there else "the service does not answer, trying again"
            typer.secho(word, err=True, dim=True)
        self._is_there = is_there


def spec_of(path: Path) -> JobSpec:
    """Return the job a file describes; `-` is what comes in on stdin."""
    from raysync.spec import parse_text, read_spec

    return parse_text(sys.stdin.buffer.read(), "stdin") if str(path) == "-" else read_spec(path)


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Turn raysync's errors into a sentence and an exit code: 2 refused, 3 no service, 130 interrupted."""
    from raysync.errors import RaysyncError

    try:
        yield
    except RaysyncError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        is_unreachable = any(base.__name__ == "Unreachable" for base in type(error).__mro__)
        raise typer.Exit(_UNREACHABLE if is_unreachable else _REFUSED) from error
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        typer.secho(f"error: {error.strerror or error}{where}", err=True, fg=typer.colors.RED)
        raise typer.Exit(_REFUSED) from error
    except KeyboardInterrupt:
        raise typer.Exit(EXIT["STOPPED"]) from None
