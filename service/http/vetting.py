"""What a job sent over HTTP may bring along: code only where that is allowed, files only below the data root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from raysync.errors import FieldProblem, SpecError
from raysync.spec import JobSpec
from service.errors import BadRequest, UserCodeRefused
from service.http.schemas import JobCreate
from service.settings import Settings


def vetted(job: JobCreate, settings: Settings) -> JobSpec:
    """Return the job as it may run, its paths resolved; raise for what cannot or may not run here."""
    check_code(job, settings)
    return confined(job.spec, settings.data_root)


def check_code(job: JobCreate, settings: Settings) -> None:
    """Raise if a job brings code to a service that takes none, or has packages installed that its task cannot need."""
    is_custom = job.spec.task.kind == "custom"
    if settings.no_user_code:
        brought = {"spec.task.kind": is_custom, "package": job.package is not None, "pip": bool(job.pip)}
        for field, is_brought in brought.items():
            if is_brought:
                raise UserCodeRefused(field)
    if job.pip and not is_custom:
        raise BadRequest("pip", f"task {job.spec.task.kind!r} is built in and needs nothing installed; leave it out")


def confined(spec: JobSpec, root: Path | None) -> JobSpec:
    """Return the job with the paths of its task resolved; raise `SpecError` for one that leads out of the data root."""
    named = {name: value for name in spec.task.path_fields if (value := getattr(spec.task, name)) is not None}
    if not named:
        return spec
    if root is None:
        name = next(iter(named))
        remedy = (
            "this service reads no files for jobs; the option --data-root of `raysync serve` names a folder it may read"
        )
        raise SpecError((FieldProblem(f"task.{name}", named[name], remedy),))
    found = {name: str(_below(root, name, value)) for name, value in named.items()}
    return spec.model_copy(update={"task": spec.task.model_copy(update=found)})


def _below(root: Path, field: str, given: str) -> Path:
    """Return a path below the data root with every link followed; a relative one begins there."""
    top = Path(os.path.realpath(root))
    try:
        path = Path(os.path.realpath(top / given))
        leads_out = [found for found in (path, *_links(path)) if not found.is_relative_to(top)]
    except (OSError, ValueError):  # a NUL in it, or a folder that may not be looked into
        leads_out = [top]
    if leads_out:
        remedy = f"it must be a path below {root}, and lead nowhere else"
        raise SpecError((FieldProblem(f"task.{field}", given, remedy),))
    return path


def _links(folder: Path) -> Iterator[Path]:
    """Yield where the links of a folder lead; a task reads its files by name."""
    if os.path.isdir(folder):
        with os.scandir(folder) as entries:
            yield from (Path(os.path.realpath(entry.path)) for entry in entries if entry.is_symlink())
