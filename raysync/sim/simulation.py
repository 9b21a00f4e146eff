"""The whole job in one process on a virtual clock: the same cores, a modelled network, and faults on purpose."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.shard import Shard
from raysync.engine.worker import Phase, Worker
from raysync.errors import Deadlock
from raysync.metrics import Event
from raysync.sim.faults import Fault, Injector
from raysync.sim.network import Network, Pace, Wires
from raysync.spec import JobSpec, check_runnable
from raysync.tasks.workload import Workload

Core = Worker | Shard | Coordinator

_MESSAGE_BYTES = 96
"""What a message weighs without its payload."""
_RETRY_S = 0.25
_RETRY_MAX_S = 2.0
_DETECT_S = 0.2
_MAX_EVENTS = 5_000_000


class Crash(Exception):
    """Raised inside a core by the injector: the process ends here."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


@dataclass
class SimResult:
    """What a simulated job came to."""

    virtual_time_s: float
    metrics: dict[str, float]
    """The last value of every metric."""
    events: list[Event]
    bytes_up: int
    """Payload bytes workers pushed."""
    bytes_down: int
    """Payload bytes of updates workers received."""
    bytes_state: int
    """Bytes of whole blocks sent to initialise shards and newcomers."""
    lssr: float
    rounds: int
    staleness_max: int
    staleness_mean: float
    eval_times: list[tuple[float, int, dict[str, float]]] = field(default_factory=list)
    """(virtual time, step, metrics) of every evaluation."""


class Simulation:
    """A job, its cores and the world they run in; deterministic in its arguments."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        network: Network | None = None,
        pace: Pace | None = None,
        faults: tuple[Fault, ...] = (),
        durable: bool = False,
        workload: Workload | None = None,
        on_event: Callable[[Event, float], None] | None = None,
        on_send: Callable[[str, m.Send], None] | None = None,
        max_time_s: float = 1e7,
    ) -> None:
        check_runnable(spec)
        self.spec = spec
        self.workload = workload or Workload(spec.task.build())
        self._pace, self._wires = pace or Pace(), Wires(network or Network())
        self._injector = Injector(faults)
        self._faulty = bool(faults) or durable
        self._on_event, self._on_send, self._max_time_s = on_event, on_send, max_time_s
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = 0
        self._durable: dict[str, dict[str, Any]] = {}
        self._overtaken: dict[str, list[Callable[[], None]]] = {}
        self._host_messages: deque[m.Message] = deque()
        self._idle_since_s: dict[str, float] = {}
        self.snapshots: dict[int, dict[str, dict[str, Any]]] = {}
        self.events: list[Event] = []
        self.eval_times: list[tuple[float, int, dict[str, float]]] = []
        self.bytes_state = self.bytes_up = self.bytes_down = 0
        self.next_worker = 0
        self.cores: dict[str, Core] = {m.COORDINATOR: self._new_coordinator()}
        for shard in range(spec.scale.shards):
            self.cores[m.shard_address(shard)] = self._new_shard(shard)
        self.after(_RETRY_S, self._tick_coordinator)

    @classmethod
    def restore(cls, spec: JobSpec, snapshot: Mapping[str, dict[str, Any]], **world: Any) -> Simulation:
        """Return a simulation that goes on from a complete snapshot."""
        simulation = cls(spec, **world)
        for address, state in snapshot.items():
            if address.startswith("worker/"):
                worker = int(address.removeprefix("worker/"))
                simulation.next_worker = max(simulation.next_worker, worker + 1)
                simulation.cores[address] = simulation._new_worker(worker)
            simulation.cores[address].load_state_dict(state)
        for address in snapshot:
            simulation._wake(address)
        return simulation

    # The outside world

    def run(self) -> SimResult:
        """Run the job to its end and return what it came to."""
        if not self.workers:
            for _ in range(self.spec.scale.workers):
                self.add_worker()
        count = 0
        while not self.coordinator.finished:
            count += 1
            if count > _MAX_EVENTS or not self._queue or self.now_s > self._max_time_s:
                raise Deadlock(self.spec.seed, self._describe())
            self._next()
        self._drain_events()
        return self._result()

    def run_until(self, condition: Callable[[Simulation], bool]) -> None:
        """Run until `condition` holds; for tests that stop in the middle."""
        if not self.workers:
            for _ in range(self.spec.scale.workers):
                self.add_worker()
        while not condition(self):
            if not self._queue or self.coordinator.finished:
                raise Deadlock(self.spec.seed, f"the condition was never met; {self._describe()}")
            self._next()

    def add_worker(self) -> int:
        """Start one more worker; return its id."""
        worker, self.next_worker = self.next_worker, self.next_worker + 1
        core = self.cores[m.worker_address(worker)] = self._new_worker(worker)
        self._deliver_all(core.address, core.start())
        self.after(_RETRY_S, lambda: self._tick_worker(core, _RETRY_S))
        return worker

    def remove_worker(self, worker: int) -> None:
        """Ask a worker to leave in good order."""
        core = self.cores.get(m.worker_address(worker))
        if isinstance(core, Worker):
            self._deliver_all(core.address, core.leave())

    def kill(self, address: str, down_s: float = 0.3) -> None:
        """End a core's process; it comes back after `down_s`, a worker as a new one, the others from their durable
        state.
        """
        if not self._faulty:
            raise ValueError(
                "nothing is durable and nobody repeats himself in this simulation: make it with durable=True"
            )
        core = self.cores.pop(address, None)
        if isinstance(core, Worker):
            self._tell_coordinator(m.Died(worker=core.id), _DETECT_S)
            self.after(down_s, self._replace_worker)
        elif core is not None:
            self.after(down_s, lambda: self._restart(address))

    def turn(self, **changes: Any) -> None:
        """Turn knobs of the running job."""
        self._tell_coordinator(m.Turn(changes=changes), 0.0)

    def tell(self, message: m.Message) -> None:
        """Hand the coordinator a message from outside."""
        self._tell_coordinator(message, 0.0)

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator, or what is left of it while it is down."""
        core = self.cores.get(m.COORDINATOR)
        return core if isinstance(core, Coordinator) else self._new_coordinator()

    @property
    def happened(self) -> list[Fault]:
        """The faults that have struck so far."""
        return self._injector.happened

    @property
    def workers(self) -> dict[int, Worker]:
        """The live workers by id."""
        return {core.id: core for core in self.cores.values() if isinstance(core, Worker)}

    @property
    def shards(self) -> dict[int, Shard]:
        """The live shards by number."""
        return {core.id: core for core in self.cores.values() if isinstance(core, Shard)}

    # Cores

    def _new_worker(self, worker: int) -> Worker:
        address = m.worker_address(worker)
        return Worker(
            worker, self.spec, self.workload, probe=lambda point: self._probe(address, point), keep=self._keep
        )

    def _new_shard(self, shard: int) -> Shard:
        address = m.shard_address(shard)
        return Shard(shard, self.spec, probe=lambda point: self._probe(address, point), keep=self._keep)

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(self.spec, probe=lambda point: self._probe(m.COORDINATOR, point), keep=self._keep)

    def _keep(self, snapshot: int, address: str, state: dict[str, Any]) -> None:
        self.snapshots.setdefault(snapshot, {})[address] = state

    def _probe(self, address: str, point: str) -> None:
        fault = self._injector.due(point)
        if fault is None:
            return
        if fault.action == "suspect":
            self._tell_coordinator(m.Died(worker=int(address.removeprefix("worker/"))), fault.delay_s)
            return
        raise Crash(fault)

    def _restart(self, address: str) -> None:
        core = (
            self._new_coordinator()
            if address == m.COORDINATOR
            else self._new_shard(int(address.removeprefix("shard/")))
        )
        self.cores[address] = core
        if address in self._durable:
            core.load_state_dict(self._durable[address])
        self._wake(address)

    def _replace_worker(self) -> None:
        if not self.coordinator.finished and len(self.workers) < self.spec.scale.workers:
            self.add_worker()

    def _wake(self, address: str) -> None:
        """Let a core that came back say what it was about to say."""
        core = self.cores[address]
        if isinstance(core, Coordinator):
            self._run(address, lambda: core.advance(self.now_s) + core.retry())
            self._flush_host_messages()
        elif isinstance(core, Worker):
            self._run(address, core.retry)
            self.after(_RETRY_S, lambda: self._tick_worker(core, _RETRY_S))

    # The event loop

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Let something happen later."""
        self._at(self.now_s + delay_s, action)

    def _at(self, time_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._queue, (time_s, self._sequence, action))
        self._sequence += 1

    def _next(self) -> None:
        self.now_s, _, action = heapq.heappop(self._queue)
        action()

    def _run(self, address: str, action: Callable[[], list[m.Send]]) -> None:
        """Let a core act, make what it now knows durable, then send what it says; or end it where the injector
        struck.
        """
        core = self.cores[address]
        role = address.split("/")[0]
        try:
            sends = action()
            if not isinstance(core, Worker) and self._faulty:
                self._durable[address] = core.state_dict()
                if sends:
                    self._probe(address, f"{role}.saved")
        except Crash as crash:
            self.kill(address, crash.fault.delay_s)
            return
        self._idle_since_s[address] = self.now_s
        self._deliver_all(address, sends)
        if isinstance(core, Worker) and core.phase is Phase.READY:
            self._schedule_compute(core)
        if isinstance(core, Coordinator):
            self._drain_events()

    def _deliver_all(self, sender: str, sends: list[m.Send]) -> None:
        role = sender.split("/")[0]
        for index, send in enumerate(sends):
            self._send(sender, send)
            if index == 0 and len(sends) > 1 and role != "worker":
                try:
                    self._probe(sender, f"{role}.sending")
                except Crash as crash:
                    self.kill(sender, crash.fault.delay_s)
                    return

    def _send(self, sender: str, send: m.Send) -> None:
        message = send.message
        if self._on_send is not None:
            self._on_send(sender, send)
        self._count(message)
        arrival_s = self._wires.arrival_s(sender, send.to, _MESSAGE_BYTES + message.payload_bytes, self.now_s)
        fault = self._injector.due(type(message).__name__)
        deliver = lambda: self._deliver(send)  # noqa: E731
        if fault is None or fault.action == "duplicate":
            self._at(arrival_s, deliver)
        if fault is not None and fault.action in ("duplicate", "delay"):
            self._at(arrival_s + fault.delay_s, deliver)
        if fault is not None and fault.action == "reorder":
            self._overtaken.setdefault(send.to, []).append(deliver)

    def _deliver(self, send: m.Send) -> None:
        core = self.cores.get(send.to)
        if core is None:
            return
        if isinstance(core, Coordinator):
            self._run(send.to, lambda: core.handle(send.message, self.now_s))
        else:
            self._run(send.to, lambda: core.handle(send.message))
        for late in self._overtaken.pop(send.to, []):
            self.after(0.0, late)

    def _schedule_compute(self, worker: Worker) -> None:
        step = worker.step

        def compute() -> None:
            if self.cores.get(worker.address) is worker and worker.phase is Phase.READY and worker.step == step:
                self._run(worker.address, worker.compute)

        self.after(self._pace.duration_s(self.spec.seed, worker.id, step), compute)

    def _tick_worker(self, worker: Worker, interval_s: float) -> None:
        """Repeat what a worker waits for, ever more rarely while nothing comes; only where messages can be lost."""
        if self.cores.get(worker.address) is not worker or worker.phase is Phase.GONE or not self._faulty:
            return
        idle = self.now_s - self._idle_since_s.get(worker.address, 0.0) >= interval_s * 0.99
        if idle and worker.phase is not Phase.READY:
            self._deliver_all(worker.address, worker.retry())
        next_s = min(_RETRY_MAX_S, interval_s * 2) if idle else _RETRY_S
        self.after(next_s, lambda: self._tick_worker(worker, next_s))

    def _tick_coordinator(self) -> None:
        core = self.cores.get(m.COORDINATOR)
        if isinstance(core, Coordinator) and (self._faulty or self.spec.budget.time_s is not None):
            self._run(m.COORDINATOR, lambda: core.retry() + core.advance(self.now_s))
        if self._faulty or self.spec.budget.time_s is not None:
            self.after(_RETRY_S, self._tick_coordinator)

    def _tell_coordinator(self, message: m.Message, delay_s: float) -> None:
        """Hand over what the host knows, in order; wait while the coordinator is down, repeat what died with it."""

        def tell() -> None:
            self._host_messages.append(message)
            self._flush_host_messages()

        self.after(delay_s, tell)

    def _flush_host_messages(self) -> None:
        while self._host_messages:
            core, message = self.cores.get(m.COORDINATOR), self._host_messages[0]
            if not isinstance(core, Coordinator):
                return
            self._run(m.COORDINATOR, partial(core.handle, message, self.now_s))
            if self.cores.get(m.COORDINATOR) is core:
                self._host_messages.popleft()

    # Books

    def _count(self, message: m.Message) -> None:
        if isinstance(message, m.Push):
            self.bytes_up += message.payload_bytes
        elif isinstance(message, m.Update):
            self.bytes_down += message.payload_bytes
        else:
            self.bytes_state += message.payload_bytes

    def _drain_events(self) -> None:
        for event in self.coordinator.take_events():
            if self.events and event.sequence <= self.events[-1].sequence:
                continue  # a coordinator that came back says again what it is not sure was heard
            self.events.append(event)
            evaluated = {name: value for name, value in event.data.items() if name.startswith("eval/")}
            if evaluated:
                self.eval_times.append((self.now_s, event.step, evaluated))
            if self._on_event is not None:
                self._on_event(event, self.now_s)

    def _result(self) -> SimResult:
        metrics: dict[str, float] = {}
        for event in self.events:
            if event.kind == "metrics":
                metrics |= event.data
        tally = self.coordinator.tally
        return SimResult(
            virtual_time_s=self.now_s,
            metrics=metrics,
            events=self.events,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            bytes_state=self.bytes_state,
            lssr=tally.lssr,
            rounds=tally.sync_steps,
            staleness_max=tally.staleness_max,
            staleness_mean=tally.staleness_sum / max(1, tally.reads),
            eval_times=self.eval_times,
        )

    def _describe(self) -> str:
        workers = ", ".join(
            f"{worker.address} {worker.phase.value} at step {worker.step}" for worker in self.workers.values()
        )
        down = [
            address
            for address in (m.COORDINATOR, *map(m.shard_address, range(self.spec.scale.shards)))
            if address not in self.cores
        ]
        return (
            f"at {self.now_s:.2f} s: {workers or 'no workers'}; down: {', '.join(down) or 'nothing'}; "
            f"next step {self.coordinator.next_step}"
        )
