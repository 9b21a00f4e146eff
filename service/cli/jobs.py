"""Commands for jobs on a service: submit, list, show, logs, checkpoints, remove, components."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.output import AsJson, CaFile, JobId, Token, Url, errors, print_json, print_model, reached

if TYPE_CHECKING:
    from service.catalogue import Catalogue
    from service.client import Client
    from service.schemas import JobPublic, JobSummary

SUBMIT_EPILOG = (
    "Examples: raysync submit job.yaml --follow     raysync submit job.yaml --working-dir ./my_code     "
    "Exit codes with --follow: 0 succeeded, 1 failed, 130 stopped; always: 2 refused, 3 no service."
)
_SKIPPED = {".git", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def submit(
    spec: Annotated[Path, typer.Argument(help="The job, YAML or JSON; see the README for its fields.")],
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
        str, typer.Option("--on-cluster-loss", help="fail, or resume from the last checkpoint by itself.")
    ] = "fail",
    key: Annotated[
        str | None, typer.Option("--key", help="An Idempotency-Key: the same key makes the same job once.")
    ] = None,
    url: Url = None,
    token: Token = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job to the service.

    The specification is checked here and there; a wrong field is named with what would be right.
    """
    with errors():
        from raysync.spec import read_spec

        job_spec = read_spec(spec)
        content = zipped(working_dir) if working_dir is not None else None
    with reached(url, token, ca) as client:
        package = client.upload(content).id if content is not None else None
        options: dict[str, Any] = {"pip": tuple(pip or ()), "resume_from": resume_from}
        job = client.submit(job_spec, key=key, package=package, on_cluster_loss=on_cluster_loss, **options)
        if follow:
            from service.cli.watch import follow_job

            typer.secho(f"submitted {job.id}", err=True, dim=True)
            raise typer.Exit(follow_job(client, job, as_json))
        if as_json:
            print_model(job)
            return
        typer.echo(job.id)
        typer.secho(f"watch it with: raysync watch {job.id}", err=True, dim=True)


def list_jobs(
    state: Annotated[str | None, typer.Option("--state", help="Only jobs in this state, such as RUNNING.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many, newest first.")] = 20,
    url: Url = None,
    token: Token = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with reached(url, token, ca) as client:
        found: list[JobSummary] = []
        cursor = None
        while len(found) < limit:
            page = client.jobs(state.upper() if state else None, min(200, limit - len(found)), cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
    if as_json:
        print_json([job.model_dump(mode="json") for job in found])
        return
    if not found:
        typer.echo("no jobs" + (f" in state {state}" if state else "") + "; submit one with: raysync submit job.yaml")
        return
    from rich.console import Console

    from service.cli.watch import table_of

    console = Console()
    console.print(table_of(found, console.width))


def show(id: JobId, url: Url = None, token: Token = None, ca: CaFile = None, as_json: AsJson = False) -> None:
    """Show a job: state and why, step, metrics, knobs, and what really runs."""
    with reached(url, token, ca) as client:
        job = client.job(id)
        if as_json:
            print_model(job)
            return
        tell(job)
        if job.state.value in ("FAILED", "STOPPED"):
            _tell_resume(client, id)


def _tell_resume(client: Client, id: str) -> None:
    """Say how to go on with a job that has a checkpoint; where nobody can look for one now, say nothing."""
    from raysync.errors import RaysyncError

    with contextlib.suppress(RaysyncError):
        client.tries = 1
        if saved := client.checkpoints(id):
            typer.echo(f"  go on from step {saved[-1].step} with: raysync submit SPEC --resume-from {id}")


def tell(job: JobPublic) -> None:
    """Print a job for a person."""
    from raysync.progress import headline, summary

    colours = {"SUCCEEDED": typer.colors.GREEN, "FAILED": typer.colors.RED}
    typer.secho(f"{job.id}  {job.state.value}", fg=colours.get(job.state.value), bold=True)
    rows = {
        "reason": headline(job.reason),
        "step": f"{job.step} of {job.steps}",
        "metrics": summary({name: value for name, value in job.metrics.items() if value is not None}) or "none yet",
        "knobs": f"version {job.knob_version}: "
        + ", ".join(f"{name} {value}" for name, value in sorted(job.knobs.items())),
        "workers": str(job.workers),
        "runs": ", ".join(f"{name} {value}" for name, value in job.runs.items() if isinstance(value, str) and value),
        "submitted": f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC by {job.owner}",
        "ended": f"{job.ended_at:%Y-%m-%d %H:%M:%S} UTC" if job.ended_at else "",
        "folder": job.path,
    }
    for name, text in rows.items():
        if text:
            typer.echo(f"  {name:<10} {text}")
    if headline(job.reason) != job.reason.strip():
        typer.secho(job.reason.strip(), dim=True)


def logs(
    id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, to the job's end.")] = False,
    tail: Annotated[int, typer.Option("--tail", min=1, max=10_000, help="How many of the last lines.")] = 200,
    actor: Annotated[str | None, typer.Option("--actor", help="Only lines of one actor, such as worker/0.")] = None,
    url: Url = None,
    token: Token = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the log lines of all of a job's actors, each with the actor's name."""
    with reached(url, token, ca) as client:
        lines = client.follow_log(id, actor) if follow else iter(client.log(id, tail, actor).splitlines())
        for line in lines:
            if as_json:
                print_json({"line": line})
            else:
                typer.echo(line)


def checkpoints(
    id: JobId,
    take: Annotated[bool, typer.Option("--take", help="Take one at the next quiet moment.")] = False,
    url: Url = None,
    token: Token = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """List a job's checkpoints, or take one now."""
    with reached(url, token, ca) as client:
        if take:
            client.take_checkpoint(id)
            typer.secho("asked for; it appears below once it is complete", err=True, dim=True)
        found = client.checkpoints(id)
    if as_json:
        print_json([checkpoint.model_dump(mode="json") for checkpoint in found])
        return
    from raysync.progress import size

    for checkpoint in found:
        typer.echo(f"{id}/{checkpoint.name}  step {checkpoint.step:>7}  {size(checkpoint.size_bytes)}")
    if not found:
        typer.echo("no checkpoints yet; take one with --take, or set checkpoint.every_rounds in the job")


def remove(id: JobId, url: Url = None, token: Token = None, ca: CaFile = None) -> None:
    """Strike a finished job from the service's books; its folder stays."""
    with reached(url, token, ca) as client:
        client.remove(id)
    typer.secho(f"removed {id}; its folder stays", err=True, dim=True)


def components(
    family: Annotated[str | None, typer.Argument(help="Such as strategies, codecs, tasks; all if left out.")] = None,
    url: Url = None,
    token: Token = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """List what a job may be made of: tasks, strategies, codecs, optimizers, schedules, each with its fields.

    As the service has them; without a service, as they are here.
    """
    found = _catalogue(url, token, ca)
    families = {name: members for name, members in found.families.items() if family in (None, name)}
    if not families:
        typer.echo(f"error: there is no family {family!r}; there are {', '.join(found.families)}", err=True)
        raise typer.Exit(2)
    if as_json:
        print_json({name: [m.model_dump(by_alias=True) for m in members] for name, members in families.items()})
        return
    for name, members in families.items():
        typer.secho(name, bold=True)
        for member in members:
            typer.echo(f"  {member.kind:<18} {member.summary}")
            if fields := _fields(member.schema_):
                typer.secho(f"  {'':<18} {fields}", dim=True)


def _catalogue(url: str | None, token: str | None, ca: str | None) -> Catalogue:
    from service.catalogue import catalogue
    from service.reach import NoService, find_service

    try:
        find_service(url, token)
    except NoService:
        return catalogue()
    with reached(url, token, ca) as client:
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


def zipped(folder: Path) -> bytes:
    """Return a folder's files as a zip file, without what no worker needs."""
    from service.errors import PackageError

    if not folder.is_dir():
        raise PackageError(f"--working-dir {folder} is not a folder")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and not path.is_symlink() and not _SKIPPED & {*inside.parts}:
                archive.write(path, str(inside))
    return buffer.getvalue()
