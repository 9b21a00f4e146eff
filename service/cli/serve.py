"""`raysync serve`: start the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.output import errors

EPILOG = (
    "Every option is also an environment variable: RAYSYNC_PORT, RAYSYNC_DATABASE and so on. Ctrl-C ends the service; "
    "jobs that run then run on in Ray, and `raysync serve` finds them again."
)


def serve(
    host: Annotated[
        str | None,
        typer.Option("--host", help="Where to listen; another than loopback needs a token first. [127.0.0.1]"),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="[8420]")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The service's own folder: database, token, its Ray. [~/.raysync]")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", help="postgresql://user:password@host/name, or sqlite:///path. [SQLite in --data]"),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="Where jobs' folders go: a path all nodes see, or a URI. [~/raysync_results]"),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", help="A Ray cluster to join, such as 10.0.0.1:6379; else one is started here."),
    ] = None,
    num_cpus: Annotated[
        int | None, typer.Option("--num-cpus", help="CPUs a Ray started here offers to jobs. [8, or what there is]")
    ] = None,
    warm: Annotated[
        int | None,
        typer.Option("--warm", help="Processes a Ray started here keeps ready for the next job. [7]"),
    ] = None,
    max_live_jobs: Annotated[
        int | None,
        typer.Option(
            "--max-live-jobs",
            help="How many jobs are started at once; others wait in line. [--num-cpus; 64 with --ray-address]",
        ),
    ] = None,
    replaces_ray: Annotated[
        str | None,
        typer.Option("--replaces-ray", help="The address of a cluster that is gone for good, as its jobs name it."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="A certificate, for https.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A further name the service is reached by; repeatable.")
    ] = None,
    allow_entrypoint: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-entrypoint",
            help="A pattern such as 'my_team.*' of custom tasks installed on the nodes; repeatable.",
        ),
    ] = None,
    no_user_code: Annotated[
        bool | None,
        typer.Option("--no-user-code", help="Run built-in tasks only: no packages, no pip, no custom tasks."),
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option("--data-root", help="The folder below which built-in tasks may read files. [they read none]"),
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option("--pass-env", help="A variable, such as AWS_PROFILE, for a Ray started here; repeatable."),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option("--trusted-proxy", help="Address of a proxy whose X-Forwarded-For is believed; repeatable."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", help="json, text, or auto: text in a terminal. [auto]")
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    end: Annotated[
        bool, typer.Option("--end", help="Do not start: end the Ray that a service left running, and its jobs.")
    ] = False,
) -> None:
    """Start the service: REST under /api/v1, for the command line and everything else that talks HTTP, and its page.

    On a fresh machine it listens on loopback, keeps its books in SQLite, starts a Ray of its own, makes a token and
    prints it. The same user's command line on this machine then needs no options at all.
    """
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "data": data,
        "database": database,
        "storage": storage,
        "ray_address": ray_address,
        "num_cpus": num_cpus,
        "warm": warm,
        "max_live_jobs": max_live_jobs,
        "replaces_ray": replaces_ray,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "allow_hosts": tuple(allow_host) if allow_host else None,
        "allow_entrypoints": tuple(allow_entrypoint) if allow_entrypoint else None,
        "no_user_code": no_user_code,
        "data_root": data_root,
        "pass_env": tuple(pass_env) if pass_env else None,
        "trusted_proxies": tuple(trusted_proxy) if trusted_proxy else None,
        "log_format": log_format,
    }
    with errors():
        settings = read_settings(given)
        from service.server import serve as service

        if end:
            typer.echo("ended" if service.end(settings) else "there was no Ray to end")
            return
        service.serve(settings, lambda text: typer.echo(text), opens=opens)


def read_settings(given: dict[str, Any]) -> Any:
    """Return the settings made of options and the environment, or say which is wrong."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from service.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except SettingsError as error:
        raise typer.BadParameter(f"{error}; a list is written as JSON, such as '[\"name\"]'") from None
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-") if first["loc"] else "settings"
        raise typer.BadParameter(f"--{name}: {first['msg'].removeprefix('Value error, ')}") from None
