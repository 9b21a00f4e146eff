"""Commands that read what jobs told: wait, metrics, events, download."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import Service, on_service
from service.cli.output import EXIT, TIMED_OUT, JobId, SilenceNote, print_json, print_model

if TYPE_CHECKING:
    from service.client import Client
    from service.http.chart_schemas import SeriesPublic

_CHUNK = 2000


@on_service
def wait(
    service: Service,
    ids: Annotated[list[str], typer.Argument(help="Jobs, by id or what an id begins with.")],
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds; exit code 5 if they have not ended by then.")
    ] = None,
) -> None:
    """Wait until jobs have ended, and print how.

    Exit codes: 0 all succeeded, 1 one failed, 4 one was stopped, 5 not in time.
    """
    import time

    with service.reached() as client:
        found = [client.find(id) for id in ids]
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        codes = list[int]()
        for id in found:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            try:
                job = client.wait(id, left_s)
            except TimeoutError as error:
                raise typer.Exit(_late(service, client, id, str(error))) from None
            codes.append(EXIT[job.state.value])
            if service.as_json:
                print_model(job)
            else:
                typer.echo(f"{job.id}  {job.state.value}  {job.reason}")
    raise typer.Exit(next((code for code in (EXIT["FAILED"], EXIT["STOPPED"]) if code in codes), 0))


def _late(service: Service, client: Client, id: str, text: str) -> int:
    if service.as_json:
        print_model(client.job(id))
    typer.secho(f"error: {text}", err=True, fg=typer.colors.RED)
    return TIMED_OUT


@on_service
def metrics(
    service: Service,
    ids: Annotated[list[str], typer.Argument(help="Jobs, by id or what an id begins with.")],
    names: Annotated[
        list[str] | None, typer.Option("--name", "-n", help="A metric, such as train/loss; may be repeated. [all]")
    ] = None,
    by_worker: Annotated[bool, typer.Option("--by-worker", help="Of each worker, where workers tell it.")] = False,
    points: Annotated[int, typer.Option("--points", min=4, max=4000, help="About so many values of each.")] = 20,
) -> None:
    """Show metrics of jobs over steps, time and bytes sent, down-sampled so that no spike is lost.

    With --json: one JSON object per series, with columns sequence, step, time_s, bytes, value.
    """
    with service.reached() as client:
        found = [client.find(id) for id in ids]
        wanted = names or _told(client, found)
        page = client.series(found, wanted[:50], by="worker" if by_worker else None, points=points)
    for job in page.jobs:
        for series in job.series:
            if service.as_json:
                print_json({"job": job.job, **series.model_dump(mode="json")})
            else:
                _tell(job.job, series)


def _told(client: Client, ids: list[str]) -> list[str]:
    return list(dict.fromkeys(name for id in ids for name in client.job(id).metrics)) or ["train/loss"]


def _tell(job: str, series: SeriesPublic) -> None:
    from service.cli.short import size

    who = f" worker {series.worker}" if series.worker is not None else ""
    unit = f" {series.unit}" if series.unit else ""
    typer.secho(
        f"{job}  {series.name}{who}  {series.count} values, {series.min:.4g} to {series.max:.4g}{unit}", bold=True
    )
    for step, time_s, sent, value in zip(series.step, series.time_s, series.bytes, series.value, strict=True):
        typer.echo(f"  step {step:>8}  {time_s:>10.1f} s  {size(sent):>9}  {value:.6g}")


@on_service
def events(
    service: Service,
    id: JobId,
    kind: Annotated[str | None, typer.Option("--kind", help="Only events of this kind, such as knobs.")] = None,
    after: Annotated[int, typer.Option("--after", min=-1, help="Only events with larger numbers.")] = -1,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many. [all]")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones, to the job's end.")] = False,
) -> None:
    """Show what happened to a job, in order: states, decisions and why, knobs, workers, checkpoints.

    With --json: one JSON object per event.
    """
    with service.reached() as client:
        id = client.find(id)
        for event in itertools.islice(_events(client, id, kind, after, follow), limit):
            if service.as_json:
                print_json(event.model_dump(mode="json"))
            else:
                typer.echo(_line(event))


def _events(client: Client, id: str, kind: str | None, after: int, follow: bool) -> Any:
    if follow:
        told = client.follow(id, after, on_contact=SilenceNote())
        yield from (event for event in told if kind is None or event.kind == kind)
        return
    while True:
        page = client.events(id, after, _CHUNK, kind)
        yield from page.items
        after = page.next_after
        if not page.has_more:
            return


def _line(event: Any) -> str:
    import json

    who = f" worker {event.worker}" if event.worker is not None else ""
    said = ", ".join(f"{name} {json.dumps(value)}" for name, value in event.data.items() if value not in (None, "", []))
    return f"{event.sequence:>7}  {event.time_s:>9.1f} s  step {event.step:>7}  {event.kind:<12}{who} {said}"


@on_service
def download(
    service: Service,
    id: JobId,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files as --list shows them, or a folder such as checkpoint_000003. [the final model]"),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", help="The folder to write to. [./JOB]")] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="List what there is, with sizes, and download nothing.")
    ] = False,
) -> None:
    """Download what a job has made: its final model, or any of its checkpoints. Needs an operator's token."""
    from service.cli.short import size

    with service.reached() as client:
        id = client.find(id)
        there = client.artifacts(id).items
        if only_list:
            for item in there:
                if service.as_json:
                    print_model(item)
                else:
                    typer.echo(f"{item.path:<44} {size(item.size_bytes):>9}  {item.kind}")
            if not there and not service.as_json:
                typer.echo("nothing yet: the model is there at the end, checkpoints as the job takes them")
            return
        chosen = chosen_of([item.path for item in there], paths)
        for path in chosen:
            target = (to or Path(id)) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.part")
            try:
                with part.open("wb") as file:
                    count = client.download(id, path, file)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
            if service.as_json:
                print_json({"path": path, "file": str(target), "size_bytes": count})
            else:
                typer.echo(f"{target}  {size(count)}")


def chosen_of(there: list[str], asked: list[str] | None) -> list[str]:
    """Return the files that are asked for: by name, by folder, or the final model."""
    from service.errors import BadRequest

    found = list[str]()
    for text in asked or ["final"]:
        named = [path for path in there if path == text or path.startswith(f"{text.rstrip('/')}/")]
        if not named:
            known = ", ".join(sorted({path.partition("/")[0] for path in there})) or "nothing yet"
            raise BadRequest(text, f"the job has no such file; there is {known}; --list shows all")
        found += named
    return list(dict.fromkeys(found))
