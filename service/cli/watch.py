"""`raysync watch`: a progress bar for one job, a live table for all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from service.cli.output import EXIT, AsJson, CaFile, Token, Url, print_json, reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from service.client import Client
    from service.schemas import JobPublic, JobSummary

_REFRESH_S = 1.0
_COLUMNS = ("id", "state", "strategy", "workers", "step", "loss", "accuracy", "LSSR", "sent", "why")
_ONLY_WHERE_WIDE = ("strategy", "workers", "LSSR", "sent", "accuracy")
_WIDE = 120


def watch(
    id: Annotated[str | None, typer.Argument(help="A job; all that have not ended if left out.")] = None,
    url: Url = None,
    token: Token = None,
    ca: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Watch a job to its end with a live line, or all live jobs as a table. Ctrl-C stops watching, not the job.

    With --json: one JSON object per event. Exit codes: 0 succeeded, 1 failed, 130 stopped or interrupted.
    """
    with reached(url, token, ca) as client:
        if id is not None:
            raise typer.Exit(follow_job(client, client.job(id), as_json))
        _watch_all(client)


def follow_job(client: Client, job: JobPublic, as_json: bool) -> int:
    """Show a job's events to its end; return the exit code it stands for."""
    from raysync.progress import ProgressLine

    try:
        if as_json:
            for event in client.follow(job.id):
                print_json(event.model_dump(mode="json"))
        else:
            with ProgressLine(job.name, job.steps) as line:
                for event in client.follow(job.id):
                    line.show(event.kind, event.step, event.data)
    except KeyboardInterrupt:
        typer.secho(f"\nnot watching any more; {job.id} goes on: raysync watch {job.id}", err=True, dim=True)
        return EXIT["STOPPED"]
    job = client.job(job.id)
    if as_json:
        print_json({"kind": "result", **job.model_dump(mode="json")})
    else:
        from service.cli.jobs import tell

        tell(job)
    return EXIT[job.state.value]


def table_of(jobs: Sequence[JobSummary], width: int = _WIDE) -> Table:
    """Return jobs as a table, one line each; where there is little room, with fewer columns."""
    from rich.markup import escape
    from rich.table import Table

    from raysync.progress import headline, size

    table = Table(box=None, pad_edge=False, expand=True)
    headings = [name for name in _COLUMNS if width >= _WIDE or name not in _ONLY_WHERE_WIDE]
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in ("id", "state", "strategy", "why") else "right"
        ratio = 1 if heading == "why" else None
        table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio)
    for job in jobs:
        found = {name: value for name, value in job.metrics.items() if value is not None}
        sent = found.get("comm/bytes_up", 0.0) + found.get("comm/bytes_down", 0.0)
        colour = {"SUCCEEDED": "green", "FAILED": "red", "RUNNING": "cyan"}.get(job.state.value, "")
        cells = {
            "id": job.id,
            "state": f"[{colour}]{job.state.value}[/{colour}]" if colour else job.state.value,
            "strategy": job.strategy,
            "workers": str(job.workers),
            "step": f"{job.step}/{job.steps}",
            "loss": f"{found['train/loss']:.3f}" if "train/loss" in found else "",
            "accuracy": f"{100 * found['eval/accuracy']:.1f} %" if "eval/accuracy" in found else "",
            "LSSR": f"{found['sync/lssr']:.2f}" if "sync/lssr" in found else "",
            "sent": size(sent) if sent else "",
            "why": escape(headline(job.reason)),
        }
        table.add_row(*(cells[heading] for heading in headings))
    return table


def _watch_all(client: Client) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    try:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                jobs = [job for job in client.jobs(limit=200).items if not job.is_terminal]
                shown = table_of(jobs, console.width) if jobs else "no live jobs; waiting for one (Ctrl-C ends)"
                live.update(shown, refresh=True)
                time.sleep(_REFRESH_S)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT["STOPPED"]) from None
