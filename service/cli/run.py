"""`raysync run`: a job to its end, without a service."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.fields import Sets, spec_with, with_fields
from service.cli.output import EXIT, INTERRUPTED, print_json, tell_error

if TYPE_CHECKING:
    from raysync.spec import JobSpec

EPILOG = (
    "Example: raysync run job.yaml    then: tensorboard --logdir ~/raysync_results    Exit codes: 0 succeeded, "
    "1 failed, 2 wrong usage or specification, 130 stopped by Ctrl-C."
)


def run(
    spec: Annotated[
        Path | None, typer.Argument(help="The job, YAML or JSON, - for stdin. With --resume it may be left out.")
    ] = None,
    sets: Sets = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage", help="Where the job's folder goes: a path, or a URI such as s3://bucket/x. [~/raysync_results]"
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", help="A Ray cluster to join, such as 10.0.0.1:6379 or 'auto'; else one is started here."
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on from this checkpoint: .../<job>/checkpoint_000003")
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option("--working-dir", help="A folder with your own code, sent to the workers.")
    ] = None,
    py_module: Annotated[
        list[Path] | None, typer.Option("--py-module", help="A package of yours, sent to the workers; may be repeated.")
    ] = None,
    pip: Annotated[
        list[str] | None, typer.Option("--pip", help="A requirement to install for the workers; may be repeated.")
    ] = None,
    ship_code: Annotated[
        bool,
        typer.Option("--ship-code", help="Send this raysync to the nodes instead of using what is installed there."),
    ] = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Save a pipeline's schedule as it ran: trace.json (Chrome, Perfetto), trace.png."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per event and the result as the last.")
    ] = False,
) -> None:
    """Run a job to its end, here or on a cluster, without a service.

    Shows a live line while it trains. Ctrl-C ends the job with its next step and leaves a checkpoint; a second one ends
    it at once. Events, TensorBoard files, logs, checkpoints and the model are in the job's folder.
    """
    from raysync.errors import RaysyncError

    try:
        if spec is None and resume is None:
            raise typer.BadParameter("give a job specification, or --resume CHECKPOINT")
        given = spec_with(spec, sets) if spec is not None else None
        from service.cli.local_run import run_job, spec_of_checkpoint

        job = given or _changed(spec_of_checkpoint(str(resume)), sets)
        env = {
            **({"working_dir": str(working_dir)} if working_dir else {}),
            **({"py_modules": [str(path) for path in py_module]} if py_module else {}),
            **({"pip": list(pip)} if pip else {}),
        }
        result = run_job(
            job,
            storage_path=storage,
            address=address,
            runtime_env=env,
            ship_code=ship_code,
            resume_from=resume,
            emit=print_json if as_json else None,
            trace=trace,
        )
    except RaysyncError as error:
        tell_error(error, str(error), as_json)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("interrupted before the job started; nothing was left running", err=True)
        raise typer.Exit(INTERRUPTED) from None
    again = [
        *(["--storage", storage] if storage else []),
        *(["--address", address] if address else []),
        *(["--working-dir", str(working_dir)] if working_dir else []),
        *(word for path in py_module or () for word in ("--py-module", str(path))),
        *(word for requirement in pip or () for word in ("--pip", requirement)),
        *(["--ship-code"] if ship_code else []),
    ]
    _tell(result, again, as_json)
    raise typer.Exit(INTERRUPTED if result["state"] == "STOPPED" else EXIT[result["state"]])


def _changed(spec: JobSpec, sets: list[str] | None) -> JobSpec:
    from raysync.spec import as_written, parse_spec

    return parse_spec(with_fields(as_written(spec), sets)) if sets else spec


def _tell(result: dict[str, Any], again: list[str], as_json: bool) -> None:
    """Print what a job came to; `again` are the options it was run with, for going on in the same way."""
    if as_json:
        print_json({"kind": "result", **result})
        return
    from service.cli.short import summary

    colour = typer.colors.GREEN if result["state"] == "SUCCEEDED" else typer.colors.RED
    typer.secho(f"{result['state']}: {summary(result['metrics']) or 'no step was made'}", fg=colour)
    if result["state"] != "SUCCEEDED":
        typer.echo(result["reason"], err=result["state"] == "FAILED")
    typer.echo(f"folder      {result['path']}")
    if result["model"]:
        typer.echo(f"model       {result['model']}")
    if result["checkpoint"]:
        typer.echo(f"checkpoint  {result['checkpoint']}")
    if "trace" in result:
        typer.echo(f"trace       {result['trace']}")
    if result["state"] != "SUCCEEDED" and result["checkpoint"]:
        typer.echo(f"go on with: raysync run {shlex.join(['--resume', result['checkpoint'], *again])}")
