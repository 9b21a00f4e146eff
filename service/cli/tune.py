"""`raysync tune`: a search over the fields of a job, without a service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.output import EXIT, INTERRUPTED, print_json

_STUDIES = Path("~/raysync_results/studies")

EPILOG = (
    "Examples: raysync tune compression_ratio    raysync tune my_search.yaml --trials 40    raysync tune --resume "
    "compression_ratio-3fa9b2 --trials +20    Exit codes: 0 finished, 1 failed, 2 wrong usage, 130 stopped."
)


def tune(
    search: Annotated[
        str | None,
        typer.Argument(help="A search that comes with raysync (see --list), or a file of your own. Not with --resume."),
    ] = None,
    trials: Annotated[
        str | None, typer.Option("--trials", help="How many points to try in all; +20 with --resume for so many more.")
    ] = None,
    set_fields: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value for a field of the search: floor.at_least=0.95; may be repeated."),
    ] = None,
    resume: Annotated[str | None, typer.Option("--resume", help="Go on with the study of this id.")] = None,
    storage: Annotated[
        Path, typer.Option("--storage", help="The folder for studies, each with its jobs. [~/raysync_results/studies]")
    ] = _STUDIES,
    address: Annotated[
        str | None, typer.Option("--address", help="A Ray cluster to join; else one is started here.")
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option("--working-dir", help="A folder with your own code, sent to the workers.")
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="Print the searches that come with raysync, and exit.")
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
    from service.cli.local_tune import run_study, searches

    if list_them:
        for name, text in searches().items():
            typer.echo(f"{name:20} {text}")
        return
    if (search is None) == (resume is None):
        raise typer.BadParameter("give a search (see --list), or --resume ID")
    try:
        result = run_study(
            search,
            resume=resume,
            trials=_count(trials, is_resumed=resume is not None),
            changes=dict(map(_assignment, set_fields or ())),
            storage=storage.expanduser().resolve(),
            address=address,
            runtime_env={"working_dir": str(working_dir)} if working_dir else None,
            emit=print_json if as_json else None,
        )
    except RaysyncError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    _tell(result, storage, as_json)
    raise typer.Exit(INTERRUPTED if result["state"] == "STOPPED" else EXIT[result["state"]])


def _count(given: str | None, is_resumed: bool) -> tuple[int, bool] | None:
    """Return a number of trials and whether it comes on top of those there were."""
    if given is None:
        return None
    if not re.fullmatch(r"\+?[1-9][0-9]{0,4}", given):
        raise typer.BadParameter(f"{given!r} is no number of trials; give 40, or +20 with --resume")
    if given.startswith("+") and not is_resumed:
        raise typer.BadParameter("+N adds to a study that was begun; use it with --resume ID")
    return int(given), given.startswith("+")


def _assignment(text: str) -> tuple[str, Any]:
    import yaml

    field, equals, value = text.partition("=")
    if not equals or not field:
        raise typer.BadParameter(f"{text!r}: give FIELD=VALUE, such as floor.at_least=0.95")
    return field, yaml.safe_load(value)


def _tell(result: dict[str, Any], storage: Path, as_json: bool) -> None:
    if as_json:
        print_json({"kind": "result", **result})
        return
    colour = {"SUCCEEDED": typer.colors.GREEN, "STOPPED": typer.colors.YELLOW}.get(result["state"], typer.colors.RED)
    typer.secho(f"{result['state']}: {result['reason']}", fg=colour)
    for name, pick in result["picks"].items():
        typer.echo(f"{name:10}  trial {pick['trial']}: {pick['why']}")
        typer.echo(f"{'':10}  raysync run {pick['file']}")
    for picture in result["pictures"]:
        typer.echo(f"picture     {picture}")
    if not result["pictures"]:
        typer.echo("pictures    none: pip install matplotlib")
    typer.echo(f"folder      {result['folder']}")
    if result["state"] != "SUCCEEDED" or result["left"]:
        where = "" if storage == _STUDIES else f" --storage {storage}"
        typer.echo(f"go on with  raysync tune --resume {result['study']}{where}")
