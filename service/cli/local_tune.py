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
from raysync.errors import SpecError
from raysync.study import StudySpec, Trial
from service.cli.study_changes import changed, continued
from service.cli.study_pictures import draw_study
from service.cli.study_table import StudyTable
from tune_configs.store import StudyStore

_BEGUN_SHOWN = 20
Emit = Callable[[dict[str, Any]], None]

logger = logging.getLogger(__name__)


def searches() -> dict[str, str]:
    """Return the searches that come with raysync, and what each is for."""
    return {name: tune_configs.load(name).text for name in tune_configs.names()}


def begun(storage: Path) -> dict[str, str]:
    """Return the studies of a folder, newest first, and how far each is."""
    folders = sorted(storage.glob("*/study.db"), key=lambda path: path.stat().st_mtime, reverse=True)
    told = {}
    for store in (StudyStore(path.parent) for path in folders[:_BEGUN_SHOWN]):
        with contextlib.suppress(SpecError, OSError, ValueError):  # of a raysync that wrote it otherwise
            over = sum(trial.state.is_over for trial in store.trials())
            told[store.id] = f"{over} of {store.spec().trials} trials over"
    return told


def run_study(
    search: str | None,
    *,
    job: Path | None,
    resume: str | None,
    retries_failed: bool,
    trials: tuple[int, bool] | None,
    changes: Mapping[str, Any],
    storage: Path,
    address: str | None,
    runtime_env: dict[str, Any] | None,
    emit: Emit | None,
) -> dict[str, Any]:
    """Run a study, or go on with one, with a live table in the terminal or changes handed to `emit`."""
    if resume is None:
        count = None if trials is None else trials[0]
        store = StudyStore.create(storage, changed(tune_configs.load(str(search)), changes, count, job))
    else:
        store = StudyStore.open(storage, resume)
    with store.held():
        if resume is not None:
            store.write_spec(continued(store.spec(), len(store.trials()), changes, trials, job))
        if retries_failed:
            store.begin_failed_again()
        code = store.code(runtime_env)
        return _run(store, store.spec(), address, code, emit) | {"code": code}


def _run(
    store: StudyStore, spec: StudySpec, address: str | None, runtime_env: dict[str, Any] | None, emit: Emit | None
) -> dict[str, Any]:
    table = StudyTable(store.id, spec) if emit is None else None
    if emit is not None:
        emit({"kind": "study", "id": store.id, "folder": str(store.folder), "trials": spec.trials})
    if table is not None and not table.is_live:
        table.say(f"study {store.id}: {spec.trials} trials in {store.folder}")

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


@contextlib.contextmanager
def _interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C, or being asked to terminate, end the study in good order, and a second Ctrl-C at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logger.warning("interrupted: ending the trials that run; Ctrl-C again ends it at once")
        stop()

    before = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
