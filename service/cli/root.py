"""The root of the command line, and every command under it."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli import components, control, jobs, run, serve, telling, token, tune, watch

app = typer.Typer(
    name="raysync",
    help="Train neural networks over slow, uneven, unreliable networks, and steer the training while it runs.",
    epilog="Start here:  raysync run job.yaml   runs one job.   raysync serve   starts the service; then, in another "
    "terminal:  raysync submit job.yaml --follow.   Every command has --help.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from raysync import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


_HERE, _THERE, _STEER, _ADMIN = "Run without a service", "Jobs on a service", "Steer a running job", "The service"

app.command("run", rich_help_panel=_HERE, epilog=run.EPILOG)(run.run)
app.command("tune", rich_help_panel=_HERE, epilog=tune.EPILOG)(tune.tune)
app.command("submit", rich_help_panel=_THERE, epilog=jobs.SUBMIT_EPILOG)(jobs.submit)
app.command("list", rich_help_panel=_THERE)(jobs.list_jobs)
app.command("show", rich_help_panel=_THERE)(jobs.show)
app.command("watch", rich_help_panel=_THERE)(watch.watch)
app.command("wait", rich_help_panel=_THERE)(telling.wait)
app.command("metrics", rich_help_panel=_THERE)(telling.metrics)
app.command("events", rich_help_panel=_THERE)(telling.events)
app.command("logs", rich_help_panel=_THERE)(jobs.logs)
app.command("checkpoints", rich_help_panel=_THERE)(jobs.checkpoints)
app.command("download", rich_help_panel=_THERE)(telling.download)
app.command("remove", rich_help_panel=_THERE)(jobs.remove)
app.command("set", rich_help_panel=_STEER, epilog=control.SET_EPILOG)(control.set_knobs)
app.command("scale", rich_help_panel=_STEER)(control.scale)
app.command("pause", rich_help_panel=_STEER)(control.pause)
app.command("resume", rich_help_panel=_STEER)(control.resume)
app.command("stop", rich_help_panel=_STEER)(control.stop)
app.command("serve", rich_help_panel=_ADMIN, epilog=serve.EPILOG)(serve.serve)
app.command("components", rich_help_panel=_ADMIN)(components.components)
app.add_typer(token.app, name="token", rich_help_panel=_ADMIN)
