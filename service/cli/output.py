"""What commands print, and how they end."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

EXIT = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 4}
"""How a command that waits for a job on a service ends."""
TIMED_OUT, INTERRUPTED = 5, 130
_REFUSED, _UNREACHABLE = 2, 3

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
JobId = Annotated[
    str,
    typer.Argument(help="The job's id as `raysync list` shows it, or enough of its beginning or of its random end."),
]


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


@contextlib.contextmanager
def errors(as_json: bool = False) -> Iterator[None]:
    """Turn raysync's errors into a sentence, or into JSON on stderr, and an exit code: 2 refused, 3 no service, 130
    interrupted.
    """
    from raysync.errors import RaysyncError

    try:
        yield
    except RaysyncError as error:
        tell_error(error, str(error), as_json)
        is_unreachable = any(base.__name__ == "Unreachable" for base in type(error).__mro__)
        raise typer.Exit(_UNREACHABLE if is_unreachable else _REFUSED) from error
    except typer.BadParameter as error:
        if not as_json:
            raise
        tell_error(error, error.message, as_json)
        raise typer.Exit(_REFUSED) from error
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        tell_error(error, f"{error.strerror or error}{where}", as_json)
        raise typer.Exit(_REFUSED) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def tell_error(error: Exception, text: str, as_json: bool) -> None:
    """Say what went wrong on stderr, in words or as JSON."""
    if not as_json:
        typer.secho(f"error: {text}", err=True, fg=typer.colors.RED)
        return
    fields = [{"field": field, "message": message} for field, message in _fields(error)]
    known = {name: value for name in ("status", "type") if (value := getattr(error, name, None)) is not None}
    detail = getattr(error, "detail", None) or text
    sys.stderr.write(json.dumps({"error": type(error).__name__, **known, "detail": detail, "errors": fields}) + "\n")
    sys.stderr.flush()


def _fields(error: Exception) -> list[tuple[str, str]]:
    """Return the fields an error names, and what would be right."""
    problems = getattr(error, "problems", ())
    return [*getattr(error, "errors", ()), *((found.field, found.remedy) for found in problems)]
