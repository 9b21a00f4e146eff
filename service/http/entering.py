"""From a request to the row of a new job, having refused what cannot or may not run."""

from __future__ import annotations

import json
import secrets
import time

from raysync.knobs import initial_knobs
from raysync.spec import parse_spec
from service.http.schemas import JobCreate
from service.http.vetting import vetted
from service.jobs.packages import check_entrypoint
from service.settings import Settings
from service.store import JobRow, Store
from service.store.studies import StudyRow


def entered(store: Store, settings: Settings, owner: str, job: JobCreate, id: str | None = None) -> JobRow:
    """Return the row of a new job, under an id of its own or a given one."""
    spec = vetted(job, settings)
    package = store.packages.use(job.package, time.time()) if job.package else None
    if job.spec.task.kind == "custom":
        modules = package.modules if package else ()
        check_entrypoint(job.spec.task.entrypoint, modules, settings.allow_entrypoints)
    knobs = initial_knobs(spec)
    id = id or f"{spec.name}-{secrets.token_hex(4)}"
    return JobRow(
        id=id,
        name=spec.name,
        owner=owner,
        spec=spec.model_dump_json(),
        strategy=spec.strategy.kind,
        package=job.package,
        pip=job.pip,
        resume_from=_checkpoint_path(store, job.resume_from) if job.resume_from else None,
        on_cluster_loss=job.on_cluster_loss,
        priority=job.priority,
        path=f"{settings.storage_root.rstrip('/')}/{id}",
        created_s=time.time(),
        steps=spec.budget.steps,
        knobs=knobs.values,
        labels={key.replace("\x00", ""): value.replace("\x00", "") for key, value in spec.labels.items()},
    )


def trial_entered(store: Store, settings: Settings, study: StudyRow, id: str, spec: str) -> JobRow:
    """Return the row of a trial's job: its study's owner, code and requirements, and behind all that people submit."""
    job = JobCreate(spec=parse_spec(json.loads(spec)), package=study.package, pip=study.pip, priority=-1)
    return entered(store, settings, study.owner, job, id)


def _checkpoint_path(store: Store, resume_from: str) -> str:
    """Return where the checkpoint is that `JOB` or `JOB/CHECKPOINT` names."""
    id, _, name = resume_from.partition("/")
    path = store.jobs.get(id).path
    return f"{path}/{name}" if name else path
