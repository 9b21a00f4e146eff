"""`raysync tune`: a search over the fields of a job, without a service."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.fields import assignment
from service.cli.output import EXIT, INTERRUPTED, print_json, tell_error

_STUDIES = Path("~/raysync_results/studies")

EPILOG = (
    "Examples: raysync tune compression_ratio\n\n"
    "How little can my own job send?  raysync tune compression_ratio --job job.yaml --set floor.at_least=0.9\n\n"
    "A search of your own: a file with `base` (a job), `space` (fields by their paths: {low, high, log} or {choice}), "
    "`floor` (the metric and the bound a model must reach) and, if you like, `objective`, `scheduler` (asha, median, "
    "pbt, none), `search` (optuna, random), `trials`, `seeds`:  raysync tune my_search.yaml --working-dir my_code\n\n"
    "Another field, without a file:  --set space.optimizer.lr.high=0.5 --set scheduler.kind=median\n\n"
    "Go on after Ctrl-C, a crash, or for more:  raysync tune --resume compression_ratio-3fa9b2 --trials +20\n\n"
    "Exit codes: 0 finished, 1 failed, 2 wrong usage, 130 stopped."
)


def tune(
    search: Annotated[
        str | None,
        typer.Argument(help="A search that comes with raysync (see --list), or a file of your own. Not with --resume."),
    ] = None,
    job: Annotated[
        Path | None, typer.Option("--job", help="Your own job, YAML or JSON, in place of the search's `base`.")
    ] = None,
    trials: Annotated[
        str | None, typer.Option("--trials", help="How many points to try in all; +20 with --resume for so many more.")
    ] = None,
    set_fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Another value for a field of the search: floor.at_least=0.95; may be repeated.",
        ),
    ] = None,
    resume: Annotated[str | None, typer.Option("--resume", help="Go on with the study of this id.")] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: begin trials that failed again, at the same points.")
    ] = False,
    storage: Annotated[
        Path,
        typer.Option(
            "--storage",
            help="The folder for studies, each with its jobs. [~/raysync_results/studies]",
            show_default=False,
        ),
    ] = _STUDIES,
    address: Annotated[
        str | None, typer.Option("--address", help="A Ray cluster to join; else one is started here.")
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option("--working-dir", help="A folder with your own code, sent to the workers.")
    ] = None,
    pip: Annotated[
        list[str] | None, typer.Option("--pip", help="A requirement to install for the workers; may be repeated.")
    ] = None,
    list_them: Annotated[
        bool,
        typer.Option("--list", help="Print the searches that come with raysync and the studies begun here, and exit."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per change of a trial and the answer as the last.")
    ] = False,
) -> None:
    """Search for the settings that send least, or take least time, and still reach a floor.

    Your own job is the first trial and the dense one the second, so that every saving has its denominator. A trial is
    an ordinary job. Ctrl-C ends the study with what was found so far; --resume goes on. The answer is three jobs
    (smallest, knee, best), each a file that can be run or submitted as it is.
    """
    from raysync.errors import RaysyncError
    from service.cli.local_tune import run_study

    folder = storage.expanduser().resolve()
    try:
        if list_them:
            _list(folder)
            return
        if (search is None) == (resume is None):
            raise typer.BadParameter("give a search (see --list), or --resume ID")
        if retry_failed and resume is None:
            raise typer.BadParameter("--retry-failed goes with --resume ID")
        result = run_study(
            search,
            job=job,
            resume=resume,
            retries_failed=retry_failed,
            trials=_count(trials, is_resumed=resume is not None),
            changes=dict(map(assignment, set_fields or ())),
            storage=folder,
            address=address,
            runtime_env=_code(working_dir, pip),
            emit=print_json if as_json else None,
        )
    except (RaysyncError, OSError) as error:
        tell_error(error, str(error), as_json)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        words = "interrupted; what has ended is kept, and --resume ID goes on with it: --list shows the id"
        typer.echo(words, err=True)
        raise typer.Exit(INTERRUPTED) from None
    _tell(result, storage, address, as_json)
    raise typer.Exit(INTERRUPTED if result["state"] == "STOPPED" else EXIT[result["state"]])


def _list(folder: Path) -> None:
    from service.cli.local_tune import begun, searches

    for name, text in searches().items():
        typer.echo(f"{name:20} {text}")
    found = begun(folder)
    if found:
        typer.echo(f"\nbegun in {folder}; go on with --resume ID:")
    for name, text in found.items():
        typer.echo(f"{name:32} {text}")


def _code(working_dir: Path | None, pip: list[str] | None) -> dict[str, Any]:
    """Return what the jobs' processes are to have, as Ray's `runtime_env`."""
    env: dict[str, Any] = {"working_dir": str(working_dir.expanduser().resolve())} if working_dir else {}
    return {**env, "pip": list(pip)} if pip else env


def _count(given: str | None, is_resumed: bool) -> tuple[int, bool] | None:
    """Return a number of trials and whether it comes on top of those there were."""
    if given is None:
        return None
    if not re.fullmatch(r"\+?[1-9][0-9]{0,4}", given):
        raise typer.BadParameter(f"{given!r} is no number of trials; give 40, or +20 with --resume")
    if given.startswith("+") and not is_resumed:
        raise typer.BadParameter("+N adds to a study that was begun; use it with --resume ID")
    return int(given), given.startswith("+")


def _tell(result: dict[str, Any], storage: Path, address: str | None, as_json: bool) -> None:
    if as_json:
        print_json({"kind": "result", **result})
        return
    colour = {"SUCCEEDED": typer.colors.GREEN, "STOPPED": typer.colors.YELLOW}.get(result["state"], typer.colors.RED)
    typer.secho(f"{result['state']}: {result['reason']}", fg=colour)
    code = result["code"]
    again = [
        *(["--working-dir", code["working_dir"]] if "working_dir" in code else []),
        *(word for requirement in code.get("pip", ()) for word in ("--pip", requirement)),
    ]
    for name, pick in result["picks"].items():
        typer.echo(f"{name:10}  trial {pick['trial']}: {pick['why']}")
        typer.echo(f"{'':10}  raysync run {shlex.join([pick['file'], *again])}")
    for picture in result["pictures"]:
        typer.echo(f"picture     {picture}")
    if not result["pictures"]:
        typer.echo("pictures    none: pip install matplotlib")
    typer.echo(f"folder      {result['folder']}")
    if result["state"] != "SUCCEEDED" or result["left"]:
        where = [
            *(["--storage", str(storage)] if storage != _STUDIES else []),
            *(["--address", address] if address else []),
            *([] if result["left"] else ["--retry-failed"]),
        ]
        typer.echo(f"go on with  raysync tune {shlex.join(['--resume', result['study'], *where])}")
