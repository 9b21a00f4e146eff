"""`raysync run`: a job without a service, on the Ray runtime itself. A composition root: it knows `actors`."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from actors.api.fit import fit
from actors.storage.folder import Folder, read_manifest
from actors.storage.spans import read_spans
from raysync.control.resuming import continued, taken_of
from raysync.events import Event
from raysync.pipeline.trace import chrome_trace
from raysync.spec import JobSpec
from service.cli.progress import ProgressLine
from service.cli.trace import draw


def run_job(
    spec: JobSpec,
    *,
    storage_path: str | None,
    address: str | None,
    runtime_env: dict[str, Any],
    ship_code: bool,
    resume_from: str | None,
    emit: Callable[[dict[str, Any]], None] | None,
    trace: bool = False,
) -> dict[str, Any]:
    """Run a job with a live line in the terminal, or hand its events to `emit`; return what it came to."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    line = ProgressLine(spec.name, spec.budget.steps) if emit is None else None

    def on_record(event: Event) -> None:
        if emit is not None:
            emit(msgspec.to_builtins(event))
        if line is not None:
            line.show(event.body, event.step, event.time_s)

    with line or contextlib.nullcontext():
        result = fit(
            spec,
            address=address,
            storage_path=storage_path,
            runtime_env=runtime_env,
            ship_code=ship_code,
            resume_from=resume_from,
            on_record=on_record,
        )
    final = Folder(result.path).at("final")
    return {
        "job": result.job,
        "state": result.state,
        "reason": result.reason,
        "metrics": result.metrics,
        "path": result.path,
        "model": f"{final.uri}/model.pt" if final.size("model.pt") is not None else None,
        "checkpoint": result.checkpoint_path,
        "runs": msgspec.to_builtins(result.runs),
        **({"trace": save_trace(result.path, spec)} if trace else {}),
    }


def save_trace(path: str, spec: JobSpec) -> str:
    """Save what the stages of a job did, as JSON and as a picture; return where, or why not."""
    if spec.scale.stages == 1:
        return "a job without stages has no schedule to trace"
    folder = Folder(path)
    spans = read_spans(folder, spec)
    if not spans:
        return "no stage has ended and left its trace"
    folder.write("trace.json", chrome_trace(spans).encode())
    with tempfile.TemporaryDirectory() as place:
        picture = Path(place) / "trace.png"
        if not draw(spans, picture):
            return f"{folder.uri}/trace.json (for trace.png: pip install matplotlib)"
        folder.write("trace.png", picture.read_bytes())
    return f"{folder.uri}/trace.png and trace.json"


def spec_of_checkpoint(path: str) -> JobSpec:
    """Return the job a checkpoint was taken of, as it was then."""
    return continued(taken_of(read_manifest(Folder(path))))
