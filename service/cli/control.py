"""Commands that steer a running job: set, scale, pause, resume, stop."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from service.cli.connection import Service, on_service
from service.cli.output import JobId, print_model

SET_EPILOG = (
    "Examples: raysync set digits-1a2b3c4d delta=0.5     raysync set digits-1a2b3c4d lr=0.05 push_ratio=0.02 "
    "--expect 3     raysync set digits-1a2b3c4d delta=0.5 --dry-run"
)


@on_service
def set_knobs(
    service: Service,
    id: JobId,
    values: Annotated[
        list[str] | None, typer.Argument(help="knob=value, as many as you like; none shows them.")
    ] = None,
    expect: Annotated[
        int | None, typer.Option("--expect", help="Refuse if the knobs are not at this version any more.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and answer, but change nothing.")] = False,
) -> None:
    """Turn a running job's knobs: delta, staleness_bound, sync_every, ratios, lr, limit_mbit, workers, pause.

    All workers have the new values from the next decision on. The answer says how to undo it.
    """
    with service.reached() as client:
        changes = dict(_parsed(value) for value in values or ())
        id = client.find(id)
        if not changes:
            knobs = client.knobs(id)
        else:
            knobs = client.turn(id, expected_version=expect, dry_run=dry_run, **changes)
    if service.as_json:
        print_model(knobs)
        return
    typer.echo(f"version {knobs.version}" + (" (dry run: nothing was changed)" if knobs.dry_run else ""))
    for name, value in sorted(knobs.values.items()):
        was = f"   (was {knobs.before[name]})" if name in knobs.before else ""
        typer.echo(f"  {name:<16} {value}{was}")
    if knobs.before and not knobs.dry_run:
        undo = " ".join(f"{name}={json.dumps(value)}" for name, value in knobs.before.items())
        typer.secho(f"undo with: {service.command_line(f'set {id} {undo}')}", err=True, dim=True)


@on_service
def scale(
    service: Service,
    id: JobId,
    workers: Annotated[int, typer.Argument(min=1, help="Between the job's min_workers and max_workers.")],
) -> None:
    """Change the number of workers; those that stay are not restarted."""
    with service.reached() as client:
        _tell(client.scale(client.find(id), workers), f"{workers} workers wanted", service.as_json)


@on_service
def pause(service: Service, id: JobId) -> None:
    """Hold a job at its next decision; it keeps its place."""
    with service.reached() as client:
        _tell(client.pause(client.find(id)), "it pauses with its next decision", service.as_json)


@on_service
def resume(service: Service, id: JobId) -> None:
    """Let a paused job go on."""
    with service.reached() as client:
        _tell(client.resume(client.find(id)), "it goes on", service.as_json)


@on_service
def stop(
    service: Service,
    id: JobId,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; it is kept with the job.")] = None,
    force_after_s: Annotated[
        float, typer.Option("--force-after", min=0, max=3600, help="Seconds until it is ended by force.")
    ] = 60.0,
) -> None:
    """End a job with its next step, leaving a checkpoint; by force if that takes too long."""
    with service.reached() as client:
        id = client.find(id)
        job = client.stop(id, reason, force_after_s)
        _tell(job, "it had ended before" if job.is_terminal else "it stops with its next step", service.as_json)
        if job.is_terminal or service.as_json:
            return
    if job.started_at is not None and force_after_s > 0:
        again = service.command_line(f"submit --resume-from {id}")
        typer.secho(f"once it has stopped, go on with: {again}", err=True, dim=True)


def _tell(job: Any, word: str, as_json: bool) -> None:
    if as_json:
        print_model(job)
    else:
        typer.echo(f"{job.id}: {word} (now {job.state.value}, step {job.step})")


def _parsed(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r}: write knob=value, such as delta=0.5")
    if value.lower() in ("inf", "infinity", '"infinity"'):
        return name, float("inf")
    words = {"auto": "auto", "none": None, "null": None}
    if value.strip('"').lower() in words:
        return name, words[value.strip('"').lower()]
    try:
        found = json.loads(value.lower() if value.lower() in ("true", "false") else value)
    except ValueError:
        found = None
    if not isinstance(found, bool | int | float):
        raise typer.BadParameter(f"{text!r}: the value must be a number, true, false, inf, auto or none")
    return name, found
