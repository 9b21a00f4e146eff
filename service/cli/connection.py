"""Which service a command talks to: the options all such commands have, declared once.

@on_service
def pause(service: Service, id: JobId) -> None:
with service.reached() as client:
...
"""

from __future__ import annotations

import contextlib
import inspect
import shlex
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Concatenate, NamedTuple, ParamSpec, get_type_hints

import typer

from service.cli.output import AsJson, errors

if TYPE_CHECKING:
    from service.client import Client

P = ParamSpec("P")

_TRIES = 3
"""A person waits at the prompt."""


class Service(NamedTuple):
    """The service that is meant, and how to print what it answers; each field is an option."""

    url: Annotated[
        str | None, typer.Option("--url", help="The service. [RAYSYNC_URL, or the one `raysync serve` started here]")
    ] = None
    token: Annotated[str | None, typer.Option("--token", help="[RAYSYNC_TOKEN, or the first token made here]")] = None
    ca: Annotated[str | None, typer.Option("--ca", help="A certificate to trust, for a service with its own TLS.")] = (
        None
    )
    as_json: AsJson = False

    @contextlib.contextmanager
    def reached(self) -> Iterator[Client]:
        """Give a client of the service."""
        with errors(self.as_json):
            from service.client import Client

            with Client(self.url, self.token, verify=self.ca or True, tries=_TRIES) as client:
                yield client

    def command_line(self, words: str) -> str:
        """Return a command for a person to run next, which reaches the same service; a token is not repeated."""
        options = [*(("--url", self.url) if self.url else ()), *(("--ca", self.ca) if self.ca else ())]
        return f"raysync {words} {shlex.join(options)}".rstrip()


def on_service(command: Callable[Concatenate[Service, P], None]) -> Callable[..., None]:
    """Return a command with the options of `Service` after its own."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def with_options(*args: P.args, **kwargs: P.kwargs) -> None:
        service = Service(**{name: kwargs.pop(name) for name in Service._fields})  # type: ignore[arg-type]
        command(service, *args, **kwargs)

    with_options.__dict__["__signature__"] = inspect.Signature([*own, *_options()])
    return with_options


def _options() -> list[inspect.Parameter]:
    kinds, defaults = get_type_hints(Service, include_extras=True), Service._field_defaults
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [inspect.Parameter(name, either, default=defaults[name], annotation=kinds[name]) for name in Service._fields]
