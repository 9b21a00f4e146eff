"""`raysync tune` on the Ray runtime itself. A composition root: it knows `actors` and `tune_configs`."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

import tune_configs
from actors.api.fit import connected
from raysync.errors import FieldProblem, SpecError
from raysync.spec import as_written
from raysync.study import StudySpec, Trial, parse_study
from raysync.study.space import with_point
from raysync.study.study_spec import kind_at
from service.cli.study_pictures import draw_study
from service.cli.study_table import StudyTable
from tune_configs.store import StudyStore

Emit = Callable[[dict[str, Any]], None]
_MAY_CHANGE = ("trials", "max_concurrent", "max_failures")

logger = logging.getLogger(__name__)


def searches() -> dict[str, str]:
    """Return the searches that come with raysync, and what each is for."""
    return {name: tune_configs.load(name).text for name in tune_configs.names()}


def run_study(
    search: str | None,
    *,
    resume: str | None,
    trials: tuple[int, bool] | None,
    changes: Mapping[str, Any],
    storage: Path,
    address: str | None,
    runtime_env: dict[str, Any] | None,
    emit: Emit | None,
) -> dict[str, Any]:
    """Run a study, or go on with one, with a live table in the terminal or changes handed to `emit`."""
    if resume is None:
        spec = _changed(tune_configs.load(str(search)), changes, None if trials is None else trials[0])
        store = StudyStore.create(storage, spec)
    else:
        store = StudyStore.open(storage, resume)
    with store.held():
        if resume is not None:
            spec = _continued(store, changes, trials)
            store.write_spec(spec)
        return _run(store, spec, address, runtime_env, emit)


def _run(
    store: StudyStore, spec: StudySpec, address: str | None, runtime_env: dict[str, Any] | None, emit: Emit | None
) -> dict[str, Any]:
    table = StudyTable(store.id, spec) if emit is None else None

    def on_change(trial: Trial) -> None:
        if table is not None:
            table.show(trial)
        if emit is not None:
            emit({"kind": "trial", **msgspec.to_builtins(trial)})

    with connected(spec.job({}), address):
        from tune_configs.launcher import DirectLauncher
        from tune_configs.study import Study

        launcher = DirectLauncher(str(store.folder / "jobs"), runtime_env)
        study = Study(store, launcher=launcher, on_change=on_change)
        for trial in study.book.trials.values():
            on_change(trial)
        with table or contextlib.nullcontext(), _interruptible(study.stop):
            result = study.run()
    try:
        pictures = draw_study(spec, result.trials, store.folder)
    except Exception as error:  # the answer stands without them
        logger.warning("no pictures: %s: %s", type(error).__name__, error)
        pictures = []
    return {
        "study": store.id,
        "state": result.state,
        "reason": result.reason,
        "trials": len(result.trials),
        "left": spec.trials - sum(trial.state.is_over for trial in result.trials),
        "front": [trial.number for trial in result.outcome.front],
        "picks": {
            pick.name: {
                "trial": pick.trial.number,
                "why": pick.sentence,
                "file": str(store.folder / "picks" / f"{pick.name}.yaml"),
            }
            for pick in result.outcome.picks
        },
        "pictures": list(map(str, pictures)),
        "folder": str(store.folder),
        "took_s": result.took_s,
        "overhead": result.overhead,
        "concurrency": result.concurrency,
    }


def _changed(spec: StudySpec, changes: Mapping[str, Any], trials: int | None) -> StudySpec:
    data = with_point(as_written(spec), changes, lambda path: kind_at(spec, path))
    return parse_study({**data, "trials": trials} if trials is not None else data)


def _continued(store: StudyStore, changes: Mapping[str, Any], trials: tuple[int, bool] | None) -> StudySpec:
    """Return a study as it goes on: what its trials were judged by stays."""
    spec, known = store.spec(), len(store.trials())
    others = [path for path in changes if path not in _MAY_CHANGE]
    if others:
        remedy = f"a study that was begun keeps it; only {', '.join(_MAY_CHANGE)} may change: begin another"
        raise SpecError((FieldProblem(others[0], changes[others[0]], remedy),), "the study")
    count = None if trials is None else trials[0] + (max(known, spec.trials) if trials[1] else 0)
    if count is not None and count < known:
        raise SpecError((FieldProblem("--trials", count, f"{known} have been begun; give more, or +N"),), "the study")
    return _changed(spec, changes, count)


@contextlib.contextmanager
def _interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C end the study in good order, and a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
