"""The worker actor: trains, and hosts a shard where the job says so."""

from __future__ import annotations

import time
from typing import Any

import ray

from actors.core_actor import CONCURRENCY, CoreActor
from actors.host import Seat
from actors.shard import ShardSeat
from actors.stopwatch import Stopwatch
from actors.storage import Folder, checkpoint_name, write_part, write_tensors
from raysync.engine.messages import Message, Send
from raysync.errors import TaskError
from raysync.spec import JobSpec

MODEL = "model.pt"


class WorkerSeat:
    """A worker core with its stopwatch and its place to save to."""

    def __init__(self, address: str, spec: JobSpec, device: str, folder: Folder, saved: dict[str, Any] | None) -> None:
        from raysync.engine.worker import Phase, Worker
        from raysync.tasks.workload import Workload

        self._phase, self._folder, self._watch = Phase, folder, Stopwatch()
        self.core = Worker(
            int(address.removeprefix("worker/")),
            spec,
            Workload(spec.task.build(), device),
            device=device,
            probe=self._watch,
            keep=self._keep,
            measured=self._watch.measured,
        )
        if saved is not None:
            self.core.load_state_dict(saved)
        self.first_step_s: float | None = None
        """When the first step was computed, by the wall clock."""
        self._saved_final = False

    def handle(self, message: Message) -> list[Send]:
        """Take in a message; the model is saved before the farewell leaves."""
        sends = self.core.handle(message)
        if self.core.phase is self._phase.PARTING and self.core.finished and self.core.leads and not self._saved_final:
            self.core.show_model(lambda state: write_tensors(self._folder.at("final"), MODEL, state))
            self._saved_final = True
        return sends

    def retry(self) -> list[Send]:
        """Repeat what was not answered."""
        return self.core.retry()

    def settle(self) -> None:
        """Workers owe nothing."""

    @property
    def is_ready(self) -> bool:
        """Whether it is to join or to compute."""
        return self.core.phase in (self._phase.NEW, self._phase.READY)

    def work(self) -> list[Send]:
        """Join, then compute."""
        if self.core.phase is self._phase.NEW:
            return self.core.start()
        self._watch.begin()
        sends = self.core.compute()
        self.first_step_s = self.first_step_s or time.time()
        return sends

    @property
    def done(self) -> bool:
        """Whether the worker has left."""
        return self.core.phase is self._phase.GONE

    def _keep(self, snapshot: int, address: str, state: dict[str, Any]) -> None:
        folder = self._folder.at(checkpoint_name(snapshot))
        write_part(folder, address, state)
        if self.core.leads:
            self.core.show_model(lambda state: write_tensors(folder, MODEL, state))


@ray.remote(concurrency_groups=CONCURRENCY)
class WorkerActor(CoreActor):
    """One worker, and the shards that live with it."""

    def seats(self) -> dict[str, Seat]:
        """Build the worker on the device Ray gave it, with as many threads as CPUs."""
        import torch

        threads = max(1, int(self.assignment.cpus))
        torch.set_num_threads(threads)
        device = _device(self.spec, torch.cuda.is_available())
        seats: dict[str, Seat] = {}
        for address in self.assignment.addresses:
            saved = self._saved(address)
            if address.startswith("worker/"):
                seats[address] = WorkerSeat(address, self.spec, device, self.folder, saved)
            else:
                seats[address] = ShardSeat(address, self.spec, self.folder, saved)
        self._facts = {"device": device, "torch_threads": threads}
        return seats

    @ray.method(concurrency_group="control")
    def facts(self) -> dict[str, Any]:
        """Return what really runs here."""
        seat = self._host and self._host.seat(self.name)
        return {**super().facts(), "first_step_s": getattr(seat, "first_step_s", None)}


def _device(spec: JobSpec, has_cuda: bool) -> str:
    if spec.scale.gpus_per_worker == 0:
        return "cpu"
    if not has_cuda:
        raise TaskError(
            spec.task.kind,
            f"scale.gpus_per_worker={spec.scale.gpus_per_worker} but this node's torch finds no CUDA; install a CUDA "
            "build of torch there, or set it to 0",
        )
    return "cuda"
