"""Query parameters that several routes have: lists in one parameter, with commas between their members."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from raysync.control.states import JobState
from raysync.events import BY_KIND
from raysync.value import Shape
from service.store.job_filter import JobFilter

_ID = r"[a-z0-9][a-z0-9._-]{0,99}"
_STATE = f"({'|'.join(state.value for state in JobState)})"
_KIND = f"({'|'.join(BY_KIND)})"
_NAME = r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+){0,5}"
_LABEL = r"[^,:\x00]{1,128}(:[^,\x00]{1,128})?"
_NUMBER = r"(-1|[0-9]{1,15})"


def _several(regex: str, sentence: str, most: int) -> Shape:
    return Shape(f"{regex}(,{regex}){{0,{most - 1}}}", sentence)


MAX_JOBS = MAX_NAMES = 50
Ids = Annotated[
    str, _several(_ID, f"give ids with commas between them, at most {MAX_JOBS}: digits-1a2b3c4d,gpt-5e6f7a8b", MAX_JOBS)
]
Names = Annotated[
    str,
    _several(
        _NAME, f"give names of metrics with commas between them, at most {MAX_NAMES}: train/loss,sync/lssr", MAX_NAMES
    ),
]
Kinds = Annotated[
    str,
    Shape(
        f"(none|{_KIND}(,{_KIND})*)", f"give kinds of events with commas between them, of {', '.join(BY_KIND)}; or none"
    ),
]
Numbers = Annotated[
    str,
    _several(
        _NUMBER, "give the number of the last event had of each job, in the order of `jobs`, or one for all", MAX_JOBS
    ),
]
Labels = Annotated[str, _several(_LABEL, "give key or key:value, several with commas between them", 20)]
States = Annotated[
    str, Shape(f"{_STATE}(,{_STATE})*", f"give states with commas between them, of {', '.join(JobState)}")
]
Sort = Literal["created", "-created", "name", "-name", "state", "-state", "step", "-step", "ended", "-ended"]


def parts_of(text: str | None) -> list[str]:
    """Return the members of a list in one parameter, each once."""
    return list(dict.fromkeys(text.split(","))) if text else []


def labels_of(text: str | None) -> list[tuple[str, str | None]]:
    """Return keys with their values, None where any will do."""
    pairs = [part.partition(":") for part in parts_of(text)]
    return [(key, value if colon else None) for key, colon, value in pairs]


def job_filter(
    state: Annotated[States | None, Query(description="only jobs in one of these states: `RUNNING,PAUSED`")] = None,
    live: Annotated[
        bool | None, Query(description="true: only those that have not ended; false: only ended ones")
    ] = None,
    owner: Annotated[str | None, Query(max_length=100, description="only jobs this token's name submitted")] = None,
    name: Annotated[
        str | None, Field(max_length=100), Query(description="only jobs whose name or id contains this")
    ] = None,
    label: Annotated[
        Labels | None,
        Query(description="only jobs with this label: `key` or `key:value`; of several all must be there"),
    ] = None,
    ids: Annotated[Ids | None, Query(description="only these jobs")] = None,
    prefix: Annotated[
        Annotated[str, Shape(r"[a-z0-9._-]{1,100}", "an id is of small letters, digits, dots and dashes")] | None,
        Query(description="only jobs whose id begins with this, or the random end of whose id does"),
    ] = None,
) -> JobFilter:
    """Return which jobs a listing is to have."""
    return JobFilter(
        states=parts_of(state),
        is_live=live,
        owner=_clean(owner),
        name=_clean(name),
        labels=labels_of(label),
        ids=parts_of(ids) if ids is not None else None,
        prefix=prefix,
    )


def _clean(text: str | None) -> str | None:
    """Return text without what no database takes."""
    return text.replace("\x00", "") if text is not None else None
