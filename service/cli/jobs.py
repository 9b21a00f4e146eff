"""Commands for jobs on a service: submit, list, show, logs, checkpoints, remove."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from service.cli.connection import Service, on_service
from service.cli.fields import Sets, spec_with, with_fields
from service.cli.output import JobId, SilenceNote, errors, print_json, print_model

if TYPE_CHECKING:
    from raysync.spec import JobSpec
    from service.client import Client
    from service.http.schemas import JobCheck, JobPublic, JobSummary

SUBMIT_EPILOG = (
    "Examples: raysync submit job.yaml --follow     raysync submit job.yaml --working-dir ./my_code     "
    "raysync submit --resume-from digits-1a2b3c4d     "
    "Exit codes with --follow: 0 succeeded, 1 failed, 4 stopped, 130 interrupted; always: 2 refused, 3 no service."
)
_SKIPPED = {".git", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


@on_service
def submit(
    service: Service,
    spec: Annotated[
        Path | None,
        typer.Argument(
            help="The job, YAML or JSON, - for stdin; see the README for its fields. With --resume-from it may be left "
            "out."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it to its end.")] = False,
    working_dir: Annotated[
        Path | None, typer.Option("--working-dir", help="A folder with your own code, for a custom task.")
    ] = None,
    pip: Annotated[
        list[str] | None, typer.Option("--pip", help="A requirement to install for the workers; may be repeated.")
    ] = None,
    resume_from: Annotated[
        str | None, typer.Option("--resume-from", help="Continue a job: JOB, or JOB/checkpoint_000003.")
    ] = None,
    on_cluster_loss: Annotated[
        str | None, typer.Option("--on-cluster-loss", help="fail, or resume from the last checkpoint by itself. [fail]")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="Of jobs that wait in line, larger ones start first. [0]")
    ] = None,
    sets: Sets = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Have it checked by the service, and enter no job.")
    ] = False,
    key: Annotated[
        str | None, typer.Option("--key", help="An Idempotency-Key: the same key makes the same job once.")
    ] = None,
) -> None:
    """Submit a job to the service.

    The specification is checked here and there; a wrong field is named with what would be right. Without one,
    --resume-from submits the job it names once more, with its specification, code and requirements.
    """
    with errors(service.as_json):
        if spec is None and resume_from is None:
            raise typer.BadParameter("give a job specification, or --resume-from JOB")
        from service.http.schemas import check_resume_from

        before = check_resume_from(resume_from) if resume_from is not None else None
        given = spec_with(spec, sets) if spec is not None else None
        content = zipped(working_dir) if working_dir is not None else None
    with service.reached() as client:
        if before is not None:
            whole = client.find(before)
            resume_from, before = f"{whole}{str(resume_from).removeprefix(before)}", whole
        asked = _Asked(given) if given is not None else _again(client.job(str(before)), sets)
        options: dict[str, Any] = {
            "package": client.upload(content).id if content is not None else asked.package,
            "pip": tuple(pip or asked.pip),
            "on_cluster_loss": on_cluster_loss or asked.on_cluster_loss,
            "priority": asked.priority if priority is None else priority,
        }
        if dry_run:
            _tell_check(service, client.check(asked.spec, resume_from=resume_from, **_only(options, "package", "pip")))
            return
        job = client.submit(asked.spec, key=key, resume_from=resume_from, **options)
        for sentence in job.advice:
            typer.secho(f"note: {sentence}", err=True, fg="yellow")
        if follow:
            from service.cli.watch import follow_job

            typer.secho(f"submitted {job.id}", err=True, dim=True)
            raise typer.Exit(follow_job(service, client, job))
        if service.as_json:
            print_model(job)
            return
        typer.echo(job.id)
        typer.secho(f"watch it with: {service.command_line(f'watch {job.id}')}", err=True, dim=True)


class _Asked(NamedTuple):
    """What a job is submitted with, where the command line does not say otherwise."""

    spec: JobSpec | dict[str, Any]
    package: str | None = None
    pip: tuple[str, ...] = ()
    on_cluster_loss: str = "fail"
    priority: int = 0


def _only(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names}


def _tell_check(service: Service, found: JobCheck) -> None:
    if service.as_json:
        print_model(found)
        return
    typer.echo("it could be submitted as it is (dry run: nothing was entered)")
    for sentence in found.advice:
        typer.secho(f"note: {sentence}", err=True, fg="yellow")


def _again(job: JobPublic, sets: list[str] | None) -> _Asked:
    return _Asked(with_fields(job.spec, sets), job.package, tuple(job.pip), job.on_cluster_loss, job.priority)


@on_service
def list_jobs(
    service: Service,
    state: Annotated[
        str | None, typer.Option("--state", help="Only jobs in this state, such as RUNNING; several with commas.")
    ] = None,
    live: Annotated[
        bool | None, typer.Option("--live/--ended", help="Only jobs that have not ended, or only those that have.")
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only jobs of this token's name.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only jobs whose name or id contains this.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="Only jobs with this label, KEY or KEY:VALUE; repeatable.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", help="created, name, state, step or ended; with - before it falling.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many, newest first.")] = 20,
) -> None:
    """List jobs, newest first."""
    with service.reached() as client:
        found: list[JobSummary] = []
        cursor = None
        while len(found) < limit:
            page = client.jobs(
                state.upper() if state else None,
                min(200, limit - len(found)),
                cursor,
                live=live,
                owner=owner,
                name=name,
                label=label or None,
                sort=sort,
            )
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
    if service.as_json:
        print_json([job.model_dump(mode="json") for job in found])
        return
    if not found:
        where = f" in state {state}" if state else ""
        typer.echo(f"no jobs{where}; submit one with: {service.command_line('submit job.yaml')}")
        return
    from rich.console import Console

    from service.cli.watch import table_of

    console = Console()
    console.print(table_of(found, console.width))


@on_service
def show(service: Service, id: JobId) -> None:
    """Show a job: state and why, step, metrics, knobs, and what really runs."""
    with service.reached() as client:
        job = client.job(client.find(id))
        if service.as_json:
            print_model(job)
            return
        tell(job)
        tell_resume(service, client, job)


def tell_resume(service: Service, client: Client, job: JobPublic) -> None:
    """Say how to go on with a job that ended early and has a checkpoint; where the service cannot look for one now, say
    nothing.
    """
    from raysync.errors import RaysyncError

    if job.state.value not in ("FAILED", "STOPPED"):
        return
    with contextlib.suppress(RaysyncError):
        client.tries = 1
        if saved := client.checkpoints(job.id):
            again = service.command_line(f"submit --resume-from {job.id}")
            typer.echo(f"  go on from step {saved[-1].step} with: {again}")


def tell(job: JobPublic) -> None:
    """Print a job for a person."""
    from service.cli.short import summary

    colours = {"SUCCEEDED": typer.colors.GREEN, "FAILED": typer.colors.RED}
    typer.secho(f"{job.id}  {job.state.value}", fg=colours.get(job.state.value), bold=True)
    rows = {
        "reason": job.reason,
        "in line": f"number {job.queue_position}" if job.queue_position is not None else "",
        "step": f"{job.step} of {job.steps}",
        "metrics": summary(job.metrics) or "none yet",
        "knobs": f"version {job.knob_version}: "
        + ", ".join(f"{name} {value}" for name, value in sorted(job.knobs.items())),
        "workers": f"{job.knobs.get('workers', '?')} when it ended" if job.is_terminal else str(job.workers),
        "runs": ", ".join(f"{name} {value}" for name, value in job.runs.items() if isinstance(value, str) and value),
        "submitted": f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC by {job.owner}",
        "ended": f"{job.ended_at:%Y-%m-%d %H:%M:%S} UTC" if job.ended_at else "",
        "folder": job.path,
    }
    for name, text in rows.items():
        if text:
            typer.echo(f"  {name:<10} {text}")
    if job.traceback:
        typer.secho(job.traceback, dim=True)


@on_service
def logs(
    service: Service,
    id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, to the job's end.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=1, max=10_000, help="How many of the last lines. [200; -f: all]")
    ] = None,
    actor: Annotated[str | None, typer.Option("--actor", help="Only lines of one actor, such as worker/0.")] = None,
) -> None:
    """Show the log lines of all of a job's actors, each with the actor's name."""
    with service.reached() as client:
        id = client.find(id)
        told = client.follow_log(id, actor, tail, on_contact=SilenceNote()) if follow else None
        lines = told if told is not None else iter(client.log(id, tail or 200, actor).splitlines())
        for line in lines:
            if service.as_json:
                print_json({"line": line})
            else:
                typer.echo(line)


@on_service
def checkpoints(
    service: Service,
    id: JobId,
    take: Annotated[bool, typer.Option("--take", help="Take one at the next quiet moment.")] = False,
) -> None:
    """List a job's checkpoints, or take one now."""
    with service.reached() as client:
        id = client.find(id)
        if take:
            client.take_checkpoint(id)
            typer.secho("asked for; it appears below once it is complete", err=True, dim=True)
        found = client.checkpoints(id)
    if service.as_json:
        print_json([checkpoint.model_dump(mode="json") for checkpoint in found])
        return
    from service.cli.short import size

    for checkpoint in found:
        typer.echo(f"{id}/{checkpoint.name}  step {checkpoint.step:>7}  {size(checkpoint.size_bytes)}")
    if not found:
        typer.echo("no checkpoints yet; take one with --take, or set checkpoint.every_rounds in the job")


@on_service
def remove(service: Service, id: JobId) -> None:
    """Strike a finished job from the service's books; its folder stays."""
    with service.reached() as client:
        id = client.find(id)
        client.remove(id)
    if service.as_json:
        print_json({"id": id, "removed": True})
        return
    typer.secho(f"removed {id}; its folder stays", err=True, dim=True)


def zipped(folder: Path) -> bytes:
    """Return a folder's files as a zip file, without what no worker needs."""
    from service.errors import PackageError

    if not folder.is_dir():
        raise PackageError(f"--working-dir {folder} is not a folder")
    buffer = io.BytesIO()
    # Not strict: a file from before 1980, as build tools and images make them, is packed as one of 1980.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and not path.is_symlink() and not _SKIPPED & {*inside.parts}:
                archive.write(path, str(inside))
    return buffer.getvalue()
