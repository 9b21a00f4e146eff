"""The worker actor: trains, whole models or a stage of them, and hosts a shard where the job says so."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ray

from actors.shell.core_actor import CONCURRENCY, CoreActor
from actors.shell.devices import device_of, use_cpus
from actors.shell.kernels import prepare_codecs
from actors.shell.seat import Seat
from actors.shell.shard import shard_seat
from actors.shell.stopwatch import Stopwatch
from actors.storage.folder import MODEL, Folder, checkpoint_name, model_names, write_tensors
from actors.storage.retry import LONG_S, patiently
from actors.storage.spans import write_spans
from raysync.address import Address, Role
from raysync.control.roles import ROLES, found
from raysync.control.stuck import StepTimes
from raysync.engine.effects import Effects, KeepPart
from raysync.events import StuckStep
from raysync.failure import where_is
from raysync.pipeline.trace import Traced
from raysync.spec import JobSpec

if TYPE_CHECKING:
    from raysync.engine.member import Member
    from raysync.engine.stage.line import Todo

FINAL = "final"
_TRACED = 20_000
"""So many operations of a stage are remembered."""


class WorkerSeat(Seat):
    """A worker or stage core with its stopwatch and its place to save to."""

    core: Member

    def __init__(
        self, address: Address, spec: JobSpec, device: str, folder: Folder, saved: dict[str, Any] | None
    ) -> None:
        from raysync.engine.member import Phase
        from raysync.tasks.workload import Workload

        prepare_codecs(spec.compression)
        self._new, self._ready, self._job_folder = Phase.NEW, Phase.READY, folder
        self._watch = Stopwatch(is_stage=address.role is Role.STAGE)
        core: Member = found(ROLES[address.role].core)(
            address,
            spec,
            Workload(spec.task.build(), device),
            device=device,
            probe=self._watch,
            measured=self._watch.measured,
        )
        super().__init__(core, folder)
        if saved is not None:
            core.load_state_dict(saved)
        self.trace: list[Traced] | None = [] if address.role is Role.STAGE else None
        """What a stage did, and when."""
        self.first_step_s: float | None = None
        """When the first step was computed, by the wall clock."""
        self._first_cpu_s = 0.0
        self._times, self._thread = StepTimes(), 0
        self.step_s: float | None = None
        """How long the last step, or a stage's last operation, took to compute."""

    def work(self) -> Effects:
        """Join, then compute and time it."""
        if self.core.phase is self._new:
            return self.core.work()
        self._watch.begin()
        self._thread = threading.get_ident()
        self._times.began(time.monotonic())
        todo: Todo | None = getattr(self.core, "todo", None)
        started_s = time.time()
        effects = self.core.work()
        self.step_s = time.time() - started_s
        self._times.ended(time.monotonic())
        self._watch.ended(is_starved=self.core.phase is self._ready and not self.is_ready)
        if todo is not None and self.trace is not None and len(self.trace) < _TRACED:
            self.trace.append(Traced(self.core.address, *todo, started_s, time.time()))
        if self.first_step_s is None:
            self.first_step_s, self._first_cpu_s = time.time(), time.process_time()
        return effects

    @property
    def busy_ratio(self) -> float | None:
        """CPU time over time since the first step; None before it. More than one where several threads compute."""
        if self.first_step_s is None:
            return None
        return (time.process_time() - self._first_cpu_s) / max(1e-3, time.time() - self.first_step_s)

    def stuck(self) -> StuckStep | None:
        """Return what is to be told of a step that takes far too long, and where its code is."""
        usual_s, for_s = self._times.usual_s, self._times.stuck_s(time.monotonic())
        if for_s is None:
            return None
        frame = sys._current_frames().get(self._thread)
        module = getattr(self.core.spec.task, "entrypoint", "").partition(":")[0]
        where = "" if frame is None else where_is(frame, module, os.getcwd())
        return StuckStep(self.core.address.spoken, self.core.step, for_s, usual_s, where)

    def ended(self) -> None:
        """Keep what a stage did, for traces; without it the job is none the worse."""
        if self.trace:
            with contextlib.suppress(OSError):
                write_spans(self._job_folder, self.core.address, self.trace)

    def part_to_write(self, part: KeepPart) -> Callable[[], dict[str, str]]:
        """Return what writes the member's part of a checkpoint, and the model, or its stage of it, if it leads."""
        write = super().part_to_write(part)
        if not self.core.leads:
            return write
        name = model_names(self.core.spec)[self.core.address.stage]
        folder, model = self._job_folder.at(checkpoint_name(part.checkpoint)), self.core.show_model(_copied)
        return lambda: write() | {name: patiently(lambda: write_tensors(folder, name, model), _saving(folder))}

    def keep_model(self) -> None:
        """Write the final model."""
        folder = self._job_folder.at(FINAL)

        def write() -> None:
            self.core.show_model(lambda model: write_tensors(folder, MODEL, model))

        patiently(write, _saving(folder), LONG_S)


def _saving(folder: Folder) -> str:
    return f"saving the model in {folder.uri}"


def _copied(model: dict[str, Any]) -> dict[str, Any]:
    """Return a model's state_dict that shares nothing with the model."""
    return {
        name: value.detach().clone() if hasattr(value, "detach") else copy.deepcopy(value)
        for name, value in model.items()
    }


@ray.remote(concurrency_groups=CONCURRENCY)
class WorkerActor(CoreActor):
    """One worker or stage, and the shards that live with it."""

    def seats(self) -> dict[Address, Seat]:
        """Build the member on the device Ray gave it, with as many threads as CPUs."""
        threads, device = use_cpus(self.assignment.cpus), device_of(self.spec)
        seats: dict[Address, Seat] = {}
        for address in self.assignment.addresses:
            saved = self._saved(address)
            if address.role in (Role.WORKER, Role.STAGE):
                seats[address] = WorkerSeat(address, self.spec, device, self.folder, saved)
            else:
                seats[address] = shard_seat(address, self.spec, self.folder, saved)
        self._facts = {"device": device, "torch_threads": threads}
        return seats

    @ray.method(concurrency_group="control")
    def facts(self) -> dict[str, Any]:
        """Return what really runs here."""
        seat = self._host and self._host.seat(self.name)
        told = {name: getattr(seat, name, None) for name in ("first_step_s", "busy_ratio", "step_s")}
        return {**super().facts(), **told}
