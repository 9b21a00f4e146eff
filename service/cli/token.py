"""`raysync token`: make, list and revoke tokens, in the service's database itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.output import AsJson, errors, print_json
from service.cli.serve import read_settings

if TYPE_CHECKING:
    from service.store import Store

app = typer.Typer(
    help="Make, list and revoke tokens. Roles: viewer looks, operator submits and steers, admin removes.",
    no_args_is_help=True,
)

Data = Annotated[Path | None, typer.Option("--data", help="The service's own folder. [~/.raysync]")]
DatabaseUrl = Annotated[str | None, typer.Option("--database", help="The service's database. [SQLite in --data]")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is; shown with what they submit.")],
    role: Annotated[str, typer.Option("--role", help="viewer, operator or admin.")] = "operator",
    days: Annotated[float | None, typer.Option("--days", min=0.0, help="How long it is valid. [for ever]")] = None,
    data: Data = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it; it cannot be read again later."""
    from service.security.auth import Role, create_token

    if not name.strip():
        raise typer.BadParameter("give a name, so that it can be told from others later")
    if days is not None and days <= 0:
        raise typer.BadParameter("--days 0: such a token would never be valid")
    if role not in list(Role):
        raise typer.BadParameter(f"--role {role}: one of {', '.join(Role)}")
    with _books(data, database) as store:
        token = create_token(store.tokens, name, Role(role), days * 86400 if days is not None else None)
    if as_json:
        print_json({"token": token, "name": name, "role": role})
    else:
        typer.echo(token)


@app.command("list")
def list_tokens(data: Data = None, database: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List tokens: id, name, role, and whether they can still be used."""
    with _books(data, database) as store:
        rows = store.tokens.all()
    now_s = time.time()
    found = [
        {
            "id": row.id,
            "name": row.name,
            "role": row.role,
            "state": "revoked"
            if row.revoked_s
            else "expired"
            if row.expires_s is not None and row.expires_s < now_s
            else "valid",
            "created": _day(row.created_s),
            "expires": _day(row.expires_s),
            "used": _day(row.used_s),
        }
        for row in rows
    ]
    if as_json:
        print_json(found)
        return
    typer.echo("id        role      state    created     expires     used        name")
    for row in found:
        typer.echo(
            f"{row['id']}  {row['role']:<8}  {row['state']:<7}  {row['created']}  {row['expires'] or 'never':<10}  "
            f"{row['used'] or 'never':<10}  {row['name']}"
        )


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(help="Its id, as `raysync token list` shows it.")],
    data: Data = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token useless, from the next request on; streams it has open end within seconds."""
    with _books(data, database) as store:
        store.tokens.revoke(id, time.time())
    if as_json:
        print_json({"id": id, "revoked": True})
    else:
        typer.echo(f"{id} is revoked")


@contextmanager
def _books(data: Path | None, database: str | None) -> Iterator[Store]:
    with errors():
        from service.store import Store

        store = Store(read_settings({"data": data, "database": database}).database_url)
        try:
            store.database.migrate()
            yield store
        finally:
            store.close()


def _day(time_s: float | None) -> str:
    return "" if time_s is None else time.strftime("%Y-%m-%d", time.gmtime(time_s))
