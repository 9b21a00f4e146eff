"""A loop's tie to the others: what `attach` returns, and what steps in place of the loop's optimizer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from actors.errors import JobFailed
from actors.link.direct import DirectLink
from actors.shell.core_loop import CoreLoop
from actors.shell.seat import Seat
from raysync.address import COORDINATOR, Address, worker
from raysync.engine.effects import Effects
from raysync.errors import KnobError, TaskError
from raysync.knobs import Knobs
from raysync.spec import JobSpec

START_S = 120.0
_CHECK_EVERY_S = 15.0
_LOOK_S = 0.05
_IDLE_S = 120.0
"""How long the first worker waits for others that do not move."""
_NOT_OURS = {
    "lr": "the loop's own optimizer has the learning rate: set it in its param_groups, or with a scheduler",
    "workers": "Ray Train decides how many workers there are",
    "straggler_deadline": "a loop makes every step of its own: it cannot be left behind",
}


class Attached:
    """A loop's tie to the others. `finish` ends it with a last synchronisation; `turn` turns knobs for all."""

    def __init__(
        self, spec: JobSpec, rank: int, replica: Any, link: DirectLink, servers: Mapping[Address, Any]
    ) -> None:
        from raysync.engine.pacing import pacing_of
        from raysync.engine.worker import Phase, Worker

        self._phase, self._servers, self._link = Phase, dict(servers), link
        self._has_clocks, self._num_workers = pacing_of(spec).applies_on_arrival, spec.scale.workers
        self.replica = replica
        self.core = Worker(worker(rank), spec, replica.workload, replica=replica)
        self._seat = _LoopSeat(self)
        self._host = CoreLoop(link, {self.core.address: self._seat})
        self._is_finished = False
        self._checked_s = time.monotonic()
        self._run_until_ready()  # joined, and with the same parameters as all others

    @property
    def metrics(self) -> dict[str, float]:
        """How far the worker is, and the payload bytes it has sent and received."""
        return {
            "step": float(self.core.step),
            "comm/bytes_up": float(self.core.round.bytes_up),
            "comm/bytes_down": float(self.core.round.bytes_down),
            "sync/rounds": float(max(self.core.shared.rounds, default=-1) + 1),
        }

    def turn(self, **changes: Any) -> Knobs:
        """Turn knobs for all workers, such as delta=0.5; they take effect at one step for all of them."""
        for name in _NOT_OURS.keys() & changes.keys():
            raise KnobError(name, changes[name], _NOT_OURS[name])
        return ray.get(self._servers[COORDINATOR].turn.remote(changes, None), timeout=START_S)  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Synchronise a last time and leave. Whoever trains on does so without this worker; with ssp, whose workers
        are never at one step, this waits for the others' last pushes. Rank 0 stays to the end.
        """
        if self._is_finished:
            return
        self._is_finished = True
        self.replica.is_resting = True
        self.core.leave()
        while not self.core.done:
            self._host.run_once()
            self._check_servers()
        self._host.flush(5.0)
        self._link.close(1.0)
        if self._has_clocks:
            self._wait_for_the_others()
            self._read_final()
        if self.core.id == 0:
            self._end_servers()

    def _wait_for_the_others(self) -> None:
        """Wait until the others have left too, as long as they move on."""
        step, moved_s = -1, time.monotonic()
        while time.monotonic() - moved_s < _IDLE_S:
            progress = ray.get(self._servers[COORDINATOR].progress.remote(-1, 0.2), timeout=START_S)
            if progress.all_left:
                break
            if progress.next_step != step:
                step, moved_s = progress.next_step, time.monotonic()

    def _read_final(self) -> None:
        """Take over what the shards hold after every worker's last push, exactly."""
        shared = self.core.shared
        for actor in self._shards:
            values = ray.get(actor.final_values.remote(str(self.core.address)), timeout=START_S)
            for index, payload in values.items():
                shared.overwrite(index, payload)
        shared.adopt()

    def _end_servers(self) -> None:
        """Wait until no worker needs the servers any more, and end them."""
        self._wait_for_the_others()
        deadline_s = time.monotonic() + _IDLE_S
        while self._has_clocks and time.monotonic() < deadline_s:
            readers = ray.get([actor.readers.remote() for actor in self._shards], timeout=START_S)
            if min(readers) >= self._num_workers:
                break
            time.sleep(_LOOK_S)
        ray.get([actor.halt.remote() for actor in self._servers.values()], timeout=START_S)
        for actor in self._servers.values():
            ray.kill(actor)

    @property
    def _shards(self) -> list[Any]:
        return [actor for name, actor in self._servers.items() if name != COORDINATOR]

    def step(self, closure: Any = None) -> Any:
        """Stand where the optimizer's step stood."""
        if self._is_finished:
            return self.replica.step_of_the_loop() if closure is None else self.replica.step_of_the_loop(closure)
        loss = None
        if closure is not None:
            import torch

            with torch.enable_grad():
                loss = closure()
        elif self.replica.needs_closure:
            raise TaskError("attached", "this optimizer evaluates the loss by itself: call optimizer.step(closure)")
        self.replica.loss, self.replica.closure = None if loss is None else float(loss), closure
        self._seat.may_compute = True
        self._run_until_ready()
        return loss

    def _run_until_ready(self) -> None:
        while self._seat.may_compute or self.core.phase is not self._phase.READY:
            if self.core.done:
                return
            self._host.run_once()
            self._check_servers()

    def _check_servers(self) -> None:
        """Raise if the coordinator or a shard has died: it is not brought back, and waiting for it would never end."""
        if time.monotonic() - self._checked_s < _CHECK_EVERY_S:
            return
        self._checked_s = time.monotonic()
        for name, actor in self._servers.items():
            try:
                ray.get(actor.ping.remote(), timeout=START_S)
            except (RayActorError, GetTimeoutError) as error:
                raise JobFailed("attached", f"{name} is gone ({type(error).__name__}); start the run again") from error

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.finish()


class _LoopSeat(Seat):
    """The worker core as the host sees it: it computes only when the loop has."""

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached.core)
        self._attached, self.may_compute = attached, False

    @property
    def is_ready(self) -> bool:
        core = self._attached.core
        if core.phase is type(core.phase).READY:
            return self.may_compute or bool(self._attached.replica.is_resting)
        return core.is_ready()

    def work(self) -> Effects:
        is_step = self._attached.core.phase is type(self._attached.core.phase).READY
        self.may_compute = self.may_compute and not is_step
        return self._attached.core.work()
