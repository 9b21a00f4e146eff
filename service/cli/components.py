"""`raysync components`: what a job may be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import Service, on_service
from service.cli.output import print_json

if TYPE_CHECKING:
    from service.http.catalogue import Catalogue


@on_service
def components(
    service: Service,
    family: Annotated[str | None, typer.Argument(help="Such as strategies, codecs, tasks; all if left out.")] = None,
) -> None:
    """List what a job may be made of: tasks, strategies, codecs, optimizers, schedules, each with its fields.

    As the service has them; without a service, as they are here.
    """
    found = _catalogue(service)
    families = {name: members for name, members in found.families.items() if family in (None, name)}
    if not families:
        typer.echo(f"error: there is no family {family!r}; there are {', '.join(found.families)}", err=True)
        raise typer.Exit(2)
    if service.as_json:
        print_json({name: [m.model_dump(by_alias=True) for m in members] for name, members in families.items()})
        return
    for name, members in families.items():
        typer.secho(name, bold=True)
        for member in members:
            typer.echo(f"  {member.kind:<18} {member.summary}")
            if fields := _fields(member.schema_):
                typer.secho(f"  {'':<18} {fields}", dim=True)


def _catalogue(service: Service) -> Catalogue:
    from service.client.transport import NoService, find_service
    from service.http.catalogue import catalogue

    try:
        find_service(service.url, service.token)
    except NoService:
        return catalogue()
    with service.reached() as client:
        return client.components()


def _fields(schema: dict[str, Any]) -> str:
    """Return the fields of a member with their defaults, in one line."""
    required = schema.get("required", ())
    told = []
    for name, field in schema.get("properties", {}).items():
        default = field.get("default")
        shown = default.get("kind") if isinstance(default, dict) else default
        if name != "kind":
            told.append(f"{name} (required)" if name in required else f"{name} [{'none' if shown is None else shown}]")
    return ", ".join(told)
