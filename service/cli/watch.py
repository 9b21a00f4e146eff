"""`raysync watch`: a progress bar for one job, a live table for all."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from service.cli.connection import Service, on_service
from service.cli.output import EXIT, INTERRUPTED, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from service.client import Client
    from service.http.schemas import JobPublic, JobSummary

_REFRESH_S = 1.0
_PATIENCE_S = 120.0
"""So long a person is told that the service does not answer before the command gives up."""
_WIDE = 120


@on_service
def watch(
    service: Service,
    id: Annotated[
        str | None, typer.Argument(help="A job, or enough of its id; all that have not ended if left out.")
    ] = None,
) -> None:
    """Watch a job to its end with a live line, or all live jobs as a table. Ctrl-C stops watching, not the job.

    With --json: one JSON object per event, or of all live jobs one for each change. Exit codes: 0 succeeded, 1 failed,
    4 stopped, 130 interrupted.
    """
    with service.reached() as client:
        if id is not None:
            raise typer.Exit(follow_job(service, client, client.job(client.find(id))))
        (_report_all if service.as_json else _watch_all)(client)


def follow_job(service: Service, client: Client, job: JobPublic) -> int:
    """Show a job's events to its end; return the exit code it stands for."""
    from service.cli.progress import ProgressLine

    try:
        if service.as_json:
            for event in client.follow(job.id, patience_s=_PATIENCE_S):
                print_json(event.model_dump(mode="json"))
        else:
            with ProgressLine(job.name, job.steps) as line:
                for event in client.follow(job.id, on_contact=line.contact, patience_s=_PATIENCE_S):
                    line.show(event.body, event.step, event.time_s)
    except KeyboardInterrupt:
        again = service.command_line(f"watch {job.id}")
        typer.secho(f"\nnot watching any more; {job.id} goes on: {again}", err=True, dim=True)
        return INTERRUPTED
    job = client.job(job.id)
    if service.as_json:
        print_json({"kind": "result", **job.model_dump(mode="json")})
    else:
        from service.cli.jobs import tell, tell_resume

        tell(job)
        tell_resume(service, client, job)
    return EXIT[job.state.value]


def table_of(jobs: Sequence[JobSummary], width: int = _WIDE) -> Table:
    """Return jobs as a table, one line each; where there is little room, with fewer columns."""
    from rich.markup import escape
    from rich.table import Table

    from raysync.reason import headline
    from service.cli.short import LABELS, shorts, size

    table = Table(box=None, pad_edge=False, expand=True)
    columns = ("id", "state", "strategy", "workers", "step", *LABELS, "why")
    narrow = {*columns} - {"strategy", "workers", *LABELS[1:]}
    headings = [name for name in columns if width >= _WIDE or name in narrow]
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in ("id", "state", "strategy", "why") else "right"
        ratio = 1 if heading == "why" else None
        table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio)
    for job in jobs:
        told = shorts(job.metrics)
        colour = {"SUCCEEDED": "green", "FAILED": "red", "RUNNING": "cyan"}.get(job.state.value, "")
        cells = {
            "id": job.id,
            "state": f"[{colour}]{job.state.value}[/{colour}]" if colour else job.state.value,
            "strategy": job.strategy,
            "workers": "" if job.is_terminal else str(job.workers),
            "step": f"{job.step}/{job.steps}",
            **{label: "" if (text := told.get(label, "")) == size(0) else text for label in LABELS},
            "why": escape(headline(job.reason)),
        }
        table.add_row(*(cells[heading] for heading in headings))
    return table


def _report_all(client: Client) -> None:
    """Print a job whenever something of it changes, and once more when it has ended."""
    from service.client import ApiError

    told: dict[str, JobSummary] = {}
    try:
        while True:
            found = {job.id: job for job in client.jobs(live=True, limit=200).items}
            for id in told.keys() - found.keys():
                with contextlib.suppress(ApiError):  # it may have been removed
                    found[id] = client.job(id)
            for id, job in found.items():
                if told.get(id) != job:
                    print_json({"kind": "job", **job.model_dump(mode="json")})
            told = {id: job for id, job in found.items() if not job.is_terminal}
            time.sleep(_REFRESH_S)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _watch_all(client: Client) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    from service.client import Unreachable

    console, client.tries = Console(), 1
    shown: Table | str = ""
    heard_s = time.monotonic()
    try:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                try:
                    jobs = client.jobs(live=True, limit=200).items
                    shown = table_of(jobs, console.width) if jobs else "no live jobs; waiting for one (Ctrl-C ends)"
                    heard_s, word = time.monotonic(), ""
                except Unreachable:
                    silent_s = time.monotonic() - heard_s
                    if silent_s > _PATIENCE_S:
                        raise
                    word = f"the service does not answer for {silent_s:.0f} s, trying again"
                live.update(Group(shown, *([word] if word else [])), refresh=True)
                time.sleep(_REFRESH_S)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
