"""The whole job in one process on a virtual clock: the same cores, a modelled network, and faults on purpose.

`raysync.sim.host` runs the cores; here is what a test, a plan or a curious person does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raysync.address import COORDINATOR, Address, Role
from raysync.control.placing import replica_of, servers_of
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.member import Member
from raysync.engine.regrouping import regrouped
from raysync.engine.server.shard import Shard
from raysync.engine.stage import Stage
from raysync.engine.worker import Worker
from raysync.errors import Deadlock
from raysync.sim.faults import Fault
from raysync.sim.host import RETRY_S, SimHost
from raysync.sim.ledger import SimResult
from raysync.spec import JobSpec

_MAX_EVENTS = 5_000_000


class Simulation(SimHost):
    """A job, its cores and the world they run in; deterministic in its arguments."""

    @classmethod
    def restore(
        cls,
        spec: JobSpec,
        checkpoint: Mapping[str, dict[str, Any]],
        *,
        workers: Iterable[int] | None = None,
        **world: Any,
    ) -> Simulation:
        """Return a simulation that goes on from a complete checkpoint, with all its workers or pipelines or these."""
        simulation = cls(spec, **world)
        saved = {Address.parse(address): state for address, state in checkpoint.items()}
        members = [address for address in saved if address.role in (Role.WORKER, Role.STAGE)]
        simulation.next_worker = 1 + max(address.index for address in members)
        parts = regrouped(spec, saved, workers)
        for address, state in parts.items():
            if address.role in (Role.WORKER, Role.STAGE):
                simulation.cores[address] = simulation._made(address)
            simulation.cores[address].load_state_dict(dict(state))
        gone = tuple(sorted({address.at(0) for address in members if address not in parts}))
        if gone:
            coordinator = simulation.coordinator
            begin = m.Begin(knobs=coordinator.knobs, gone=gone)
            simulation.act(coordinator, lambda: coordinator.handle(begin, simulation.now_s))
        for address in parts:
            simulation._wake(address)
        simulation._lives = simulation.coordinator.view.life
        return simulation

    # The outside world

    def run(self) -> SimResult:
        """Run the job to its end and return what it came to."""
        self._start()
        count = 0
        while not self.coordinator.finished:
            count += 1
            if count > _MAX_EVENTS or self._clock.is_empty or self.now_s > self._max_time_s:
                raise Deadlock(self.spec.seed, self._describe())
            self._clock.next()
        self.carry_out(self.coordinator, self.coordinator.settle())
        return self.ledger.result(self.coordinator.books.metrics, self.now_s)

    def run_until(self, condition: Callable[[Simulation], bool]) -> None:
        """Run until `condition` holds; for tests that stop in the middle."""
        self._start()
        while not condition(self):
            if self._clock.is_empty or self.coordinator.finished:
                raise Deadlock(self.spec.seed, f"the condition was never met; {self._describe()}")
            self._clock.next()

    def add_worker(self) -> int:
        """Start one more worker, or pipeline; return its number."""
        index, self.next_worker = self.next_worker, self.next_worker + 1
        for address in replica_of(self.spec, index):
            self._add(address)
        return index

    def _add(self, address: Address) -> None:
        core = self.cores[address] = self._made(address)
        self.carry_out(core, core.work())
        self.after(RETRY_S, lambda: self._tick(core, RETRY_S))

    def remove_worker(self, index: int) -> None:
        """Ask a worker, or pipeline, to leave in good order."""
        for address in replica_of(self.spec, index):
            core = self.cores.get(address)
            if isinstance(core, Member):
                self.carry_out(core, core.leave())

    def turn(self, **changes: Any) -> None:
        """Turn knobs of the running job."""
        self.tell(m.Turn(changes=changes))

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator, or what is left of it while it is down."""
        core = self.cores.get(COORDINATOR) or self._made(COORDINATOR)
        assert isinstance(core, Coordinator)
        return core

    @property
    def happened(self) -> list[Fault]:
        """The faults that have struck so far."""
        return self._injector.happened

    @property
    def workers(self) -> dict[int, Worker]:
        """The live workers by number."""
        return {core.id: core for core in self.cores.values() if isinstance(core, Worker)}

    @property
    def members(self) -> dict[Address, Member]:
        """The live workers and stages."""
        return {address: core for address, core in self.cores.items() if isinstance(core, Member)}

    @property
    def stages(self) -> dict[Address, Stage]:
        """The live stages."""
        return {address: core for address, core in self.cores.items() if isinstance(core, Stage)}

    @property
    def shards(self) -> dict[int, Shard]:
        """The live shards by number."""
        return {core.address.index: core for core in self.cores.values() if isinstance(core, Shard)}

    # Cores

    def _start(self) -> None:
        if not self.members:
            for _ in range(self.spec.scale.workers):
                self.add_worker()

    def _replace(self, dead: Address) -> None:
        if self.coordinator.finished:
            return
        if dead.role is Role.STAGE:
            if dead not in self.cores:
                self._add(dead)
        elif len(self.workers) < self.spec.scale.workers:
            self.add_worker()

    def _describe(self) -> str:
        found = [f"{core.address} {core.phase.value} at step {core.step}" for core in self.members.values()]
        down = [str(address) for address in servers_of(self.spec) if address not in self.cores]
        return (
            f"at {self.now_s:.2f} s: {', '.join(found) or 'no workers'}; down: {', '.join(down) or 'nothing'}; "
            f"next step {self.coordinator.pacing.next_step}"
        )
