"""What commands print, how they end, and how they reach the service."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from service.client import Client

EXIT = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 130}
"""How a command that waits for a job ends."""
_REFUSED, _UNREACHABLE = 2, 3
_TRIES = 3
"""A person waits at the prompt."""

Url = Annotated[
    str | None, typer.Option("--url", help="The service. [RAYSYNC_URL, or the one `raysync serve` started here]")
]
Token = Annotated[str | None, typer.Option("--token", help="[RAYSYNC_TOKEN, or the first token made here]")]
CaFile = Annotated[str | None, typer.Option("--ca", help="A certificate to trust, for a service with its own TLS.")]
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


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Turn raysync's errors into a sentence and an exit code: 2 refused, 3 nobody there, 130 interrupted."""
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


@contextlib.contextmanager
def reached(url: str | None, token: str | None, ca: str | None = None) -> Iterator[Client]:
    """Give a client of the service."""
    with errors():
        from service.client import Client

        with Client(url, token, verify=ca or True, tries=_TRIES) as client:
            yield client
