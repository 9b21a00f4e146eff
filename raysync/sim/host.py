"""The host of a simulated job: the cores, the wires between them, and what is kept of them, on a virtual clock.

Servers that die are succeeded as on Ray: a coordinator by one that asks, a shard by its backup, if the job asks for one
(`scale.replicas`). One without comes back with all it has said (`secure` keeps it), where on Ray the job would go back
to a checkpoint. Where the injector says so a core is ended, or a message lost, doubled, delayed or overtaken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from raysync.address import COORDINATOR, Address, Role, shard
from raysync.control.placing import servers_of, slot_of
from raysync.control.roles import ROLES, Death, found
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.core import Core, Host
from raysync.engine.effects import Effects, KeepPart, Send
from raysync.engine.evaluator import Evaluator
from raysync.engine.server.shard import Shard
from raysync.engine.stage import Stage
from raysync.engine.worker import Phase, Worker
from raysync.events import Event
from raysync.knobs import initial_knobs
from raysync.pipeline.trace import Traced
from raysync.sim.clock import Clock
from raysync.sim.faults import Fault, Injector
from raysync.sim.ledger import SimLedger
from raysync.sim.network import Network, Pace, Wires
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload

_MESSAGE_BYTES = 96
"""What a message weighs without its payload."""
RETRY_S = 0.25
_RETRY_MAX_S = 2.0
_DETECT_S = 0.2


class Crash(Exception):
    """Raised inside a core by the injector: the process ends here."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class SimHost(Host):
    """Runs the cores of a job; deterministic in its arguments."""

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
        on_send: Callable[[Address, Send], None] | None = None,
        max_time_s: float = 1e7,
    ) -> None:
        self.spec = spec
        self.workload = workload or Workload(spec.task.build())
        self._pace, self._wires = pace or Pace(), Wires(network or Network())
        self._injector = Injector(faults)
        self._faulty = bool(faults) or durable
        self._on_event, self._on_send, self._max_time_s = on_event, on_send, max_time_s
        self._clock, self.ledger = Clock(), SimLedger()
        self._durable: dict[Address, dict[str, Any]] = {}
        self._overtaken: dict[Address, list[Callable[[], None]]] = {}
        self._host_messages: deque[m.Message] = deque()
        self._idle_since_s: dict[Address, float] = {}
        self.checkpoints: dict[int, dict[str, dict[str, Any]]] = {}
        """By number: the parts by the address of their core, as text."""
        self.saved_by: list[int] = []
        """The workers that have saved the final model."""
        self.next_worker = 0
        self._coming_back: set[Address] = set()
        """Shards that are down, and know all they have said when they are up again."""
        self._lives = 0
        """How many coordinators there were before the present one."""
        self._asked = initial_knobs(spec)
        """What people have asked for: whoever looks after a job tells a new coordinator."""
        self._stop: m.Stop | None = None
        self.spans: list[Traced] = []
        """What stages did, and when."""
        self._busy: dict[Address, Stage] = {}
        self.cores: dict[Address, Core] = {address: self._made(address) for address in servers_of(spec)}
        self._num_shards = spec.scale.shards
        """The highest number a shard may have had, but for its slot."""
        for address in [address for address in self.cores if address.role is Role.SHARD]:
            self._add_shard(address)
        self.after(RETRY_S, self._tick_coordinator)

    @property
    def now_s(self) -> float:
        """The virtual time."""
        return self._clock.now_s

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Let something happen later."""
        self._clock.after(delay_s, action)

    def kill(self, address: Address, down_s: float = 0.3) -> None:
        """End a core's process; after `down_s` a new one takes its place, or it comes back from its durable state."""
        if not self._faulty:
            raise ValueError("nothing is durable and no core repeats itself in this simulation: make it durable=True")
        core = self.cores.pop(address, None)
        if core is None:
            return
        if ROLES[address.role].death is Death.REPLACE:
            self.tell(m.Died(who=address), _DETECT_S)
            self.after(max(down_s, _DETECT_S), lambda: self._replace(address))
        elif isinstance(core, Shard) and self.spec.scale.replicas:
            self._lose_shards({address: core}, down_s)
        else:
            self._coming_back |= {address} if address.role is Role.SHARD else set()
            self.after(down_s, lambda: self._restart(address))

    def _lose_shards(self, lost: dict[Address, Shard], down_s: float) -> None:
        """A process with shards of all stages has ended. If others know all they have said, those take their place and
        new ones stand by; else it comes back with what is durable.
        """
        first = next(iter(lost)).at(0)
        for stage in range(self.spec.scale.stages):
            core = self.cores.pop(first.at(stage), None)
            if isinstance(core, Shard):
                lost[first.at(stage)] = core
        if not self._is_dispensable(first, lost):
            self._coming_back |= lost.keys()
            for address in lost:
                self.after(down_s, partial(self._restart, address))
            return
        self._num_shards += self.spec.scale.shards
        newcomer = shard(slot_of(self.spec, first).index + self._num_shards)
        self.tell(m.Died(who=first), _DETECT_S)
        self.after(max(down_s, _DETECT_S), lambda: self._stand_by(newcomer))

    def _is_dispensable(self, first: Address, lost: dict[Address, Shard]) -> bool:
        """Return whether the job goes on without shards: they stand by, or those who live know that all they said is
        known.
        """
        if not any(core.serves for core in lost.values()):
            return all(core.covers is None or core.covers in self.cores for core in lost.values())
        coordinator = self.cores.get(COORDINATOR)
        if isinstance(coordinator, Coordinator) and first in coordinator.membership.covered:
            return True
        covered = {core.covers for core in self.cores.values() if isinstance(core, Shard)}
        return lost.keys() <= covered

    def _stand_by(self, first: Address) -> None:
        """Start shards that may follow others."""
        for stage in range(self.spec.scale.stages):
            self._add_shard(first.at(stage))
        self.tell(m.StandBy(who=first))

    def _add_shard(self, address: Address) -> None:
        core = self.cores[address] = self._made(address)
        self.after(RETRY_S, lambda: self._tick(core, RETRY_S))

    def tell(self, message: m.Message, delay_s: float = 0.0) -> None:
        """Hand the coordinator a message from outside, in order; it waits while the coordinator is down, and is said
        again if it died with it.
        """

        def told() -> None:
            self._host_messages.append(message)
            self._flush_host_messages()

        self.after(delay_s, told)

    # Cores

    def _made(self, address: Address) -> Core:
        traits = ROLES[address.role]
        brought = {"workload": self.workload} if traits.runs_user_code else {}
        probe = lambda point: self._probe(address, point)  # noqa: E731
        core: Core = found(traits.core)(address, self.spec, **brought, probe=probe)
        return core

    def _probe(self, address: Address, point: str) -> None:
        fault = self._injector.due(point)
        if fault is None:
            return
        if fault.action == "suspect":
            self.tell(m.Died(who=address), fault.delay_s)
            return
        raise Crash(fault)

    def _restart(self, address: Address) -> None:
        core = self.cores[address] = self._made(address)
        self._coming_back.discard(address)
        if ROLES[address.role].death is Death.SUCCEED:
            self._succeed(core)
            return
        if address in self._durable:
            core.load_state_dict(self._durable[address])
        self._wake(address)

    def _succeed(self, core: Core) -> None:
        """Let a new coordinator take over, with what a controller would know."""
        self._lives += 1
        self.ledger.begin_life()
        members = {who: other for who, other in self.cores.items() if ROLES[who.role].death is Death.REPLACE}
        shards = {who for who in self.cores if who.role is Role.SHARD} | self._coming_back
        succession = m.Succession(
            life=self._lives,
            roster=(*sorted(shards), *(who for who, other in members.items() if not other.done)),
            parted=tuple({who.at(0): None for who, other in members.items() if other.done}),
            told_step=self.ledger.told_step,
        )
        self.give(core, m.Begin(knobs=self._asked, succession=succession))
        if self._stop is not None:
            self.give(core, self._stop)
        if self.cores.get(core.address) is core:
            self._flush_host_messages()

    def _wake(self, address: Address) -> None:
        """Let a core that came back say what it was about to say."""
        core = self.cores[address]
        self.act(core, lambda: core.retry(self.now_s))
        if address == COORDINATOR:
            self._flush_host_messages()
        else:
            self.after(RETRY_S, lambda: self._tick(core, RETRY_S))

    def _replace(self, dead: Address) -> None:
        """Start a member in place of one that died."""
        raise NotImplementedError

    # The host contract

    def act(self, core: Core, action: Callable[[], Effects]) -> None:
        """Let a core act, make what it now knows durable, then carry out what it asked for; or end it where the
        injector struck.
        """
        try:
            effects = action()
            self.secure(core, effects)
        except Crash as crash:
            self.kill(core.address, crash.fault.delay_s)
            return
        self._idle_since_s[core.address] = self.now_s
        self.carry_out(core, effects)
        if self.cores.get(core.address) is core:
            self.carry_out(core, core.settle())
            self._schedule_work(core)

    def carry_out(self, core: Core, effects: Effects) -> None:
        """Do what a core asked for; it may be ended when the first of several messages is out."""
        for index, effect in enumerate(effects):
            super().carry_out(core, [effect])
            if self.cores.get(core.address) is not core:
                return  # it ended meanwhile
            if index == 0 and len(effects) > 1 and isinstance(effect, Send):
                try:
                    self._probe_server(core, "sending")
                except Crash as crash:
                    self.kill(core.address, crash.fault.delay_s)
                    return

    def clock_s(self, core: Core) -> float:
        """Return the virtual time."""
        return self.now_s

    def secure(self, core: Core, effects: Effects) -> None:
        """Keep a server's state; workers promise nothing."""
        if self._faulty and ROLES[core.address.role].death is Death.RECOVER:
            self._durable[core.address] = core.state_dict()
        if self._faulty and effects:
            self._probe_server(core, "saved")

    def _probe_server(self, core: Core, point: str) -> None:
        if ROLES[core.address.role].death in (Death.RECOVER, Death.SUCCEED):
            self._probe(core.address, f"{core.address.role.value}.{point}")

    def send(self, core: Core, send: Send) -> None:
        """Put a message on the wire, unless the injector has other plans for it."""
        message = send.message
        if self._on_send is not None:
            self._on_send(core.address, send)
        self.ledger.sent(message)
        size_bytes = _MESSAGE_BYTES + message.payload_bytes
        own = core.spec.transport
        arrival_s = self._wires.arrival_s(str(core.address), str(send.to), size_bytes, self.now_s, own)
        fault = self._injector.due(type(message).__name__)
        deliver = lambda: self._deliver(send)  # noqa: E731
        if fault is None or fault.action == "duplicate":
            self._clock.at(arrival_s, deliver)
        if fault is not None and fault.action in ("duplicate", "delay"):
            self._clock.at(arrival_s + fault.delay_s, deliver)
        if fault is not None and fault.action == "reorder":
            self._overtaken.setdefault(send.to, []).append(deliver)

    def keep_part(self, core: Core, part: KeepPart) -> None:
        """Write a part, which takes its time; a core that dies meanwhile takes it along."""
        duration_s = self._pace.write_s_of(self.spec.seed, core.address, part.checkpoint)
        self.after(duration_s / 2, lambda: self._half_written(core))
        self.after(duration_s, lambda: self._written(core, part))

    def _half_written(self, core: Core) -> None:
        if self.cores.get(core.address) is not core or not self._faulty:
            return
        try:
            self._probe(core.address, f"{core.address.role.value}.writing")
        except Crash as crash:
            self.kill(core.address, crash.fault.delay_s)

    def _written(self, core: Core, part: KeepPart) -> None:
        if self.cores.get(core.address) is core:
            self.give(core, m.PartKept(checkpoint=part.checkpoint, problem=self.write_part(core, part)))

    def write_part(self, core: Core, part: KeepPart) -> str | None:
        """Have a part written, unless the checkpoint is complete; return why not, if so."""
        parts = self.checkpoints.setdefault(part.checkpoint, {})
        if str(COORDINATOR) in parts:
            return f"checkpoint {part.checkpoint} is complete and is not written to"
        parts[str(slot_of(self.spec, core.address))] = part.state
        return None

    def keep_model(self, core: Core) -> None:
        """Note who saved the final model."""
        self.saved_by.append(core.address.index)

    def note(self, core: Core, event: Event) -> None:
        """Take in an event, once."""
        if self.ledger.told(event, self.now_s) and self._on_event is not None:
            self._on_event(event, self.now_s)

    # The event loop

    def _deliver(self, send: Send) -> None:
        core = self.cores.get(send.to)
        if core is None:
            return
        self.give(core, send.message)
        for late in self._overtaken.pop(send.to, []):
            self.after(0.0, late)

    def _schedule_work(self, core: Core) -> None:
        """Let a worker compute its next step, after as long as a step takes; whoever else has work does it at once."""
        if isinstance(core, Evaluator) and core.is_ready():
            self.after(0.0, lambda: self._work_if_there(core))
        if isinstance(core, Stage):
            self._schedule_pass(core)
        if not isinstance(core, Worker) or core.phase is not Phase.READY:
            return
        step = core.step

        def compute() -> None:
            if (
                self.cores.get(core.address) is core
                and core.phase is Phase.READY
                and core.step == step
                and core.is_ready()
            ):
                self.act(core, core.work)

        self.after(self._pace.duration_s(self.spec.seed, core.id, step), compute)

    def _schedule_pass(self, core: Stage) -> None:
        """Let a stage do what is next in its plan, after as long as it takes; one thing at a time."""
        todo = core.todo
        if todo is None or self._busy.get(core.address) is core or not core.is_ready():
            return
        self._busy[core.address] = core
        start_s = self.now_s

        def compute() -> None:
            if self._busy.get(core.address) is core:
                del self._busy[core.address]
            if self.cores.get(core.address) is not core:
                return
            if core.todo == todo and core.is_ready():
                self.spans.append(Traced(core.address, *todo, start_s, self.now_s))
                self.act(core, core.work)
            else:
                self._schedule_pass(core)

        self.after(self._pace.pass_s(self.spec.seed, core.address, *todo), compute)

    def _work_if_there(self, core: Core) -> None:
        if self.cores.get(core.address) is core:
            self.act(core, core.work)

    def _tick(self, core: Core, interval_s: float) -> None:
        """Repeat what a core waits for, ever more rarely while nothing comes; only where messages can be lost."""
        if self.cores.get(core.address) is not core or core.done or not self._faulty:
            return
        idle = self.now_s - self._idle_since_s.get(core.address, 0.0) >= interval_s * 0.99
        if idle and not core.is_ready(self.now_s):
            self.carry_out(core, core.retry(self.now_s))
        next_s = min(_RETRY_MAX_S, interval_s * 2) if idle else RETRY_S
        self.after(next_s, lambda: self._tick(core, next_s))

    def _tick_coordinator(self) -> None:
        if not self._faulty and self.spec.budget.time_s is None:
            return
        core = self.cores.get(COORDINATOR)
        if core is not None:
            self.act(core, lambda: core.retry(self.now_s))
        self.after(RETRY_S, self._tick_coordinator)

    def _flush_host_messages(self) -> None:
        while self._host_messages:
            core, message = self.cores.get(COORDINATOR), self._host_messages[0]
            if core is None:
                return
            self.give(core, message)
            if self.cores.get(COORDINATOR) is not core:
                continue
            self._host_messages.popleft()
            assert isinstance(core, Coordinator)
            self._asked = core.board.ahead() if isinstance(message, m.Turn) else self._asked
            self._stop = message if isinstance(message, m.Stop) else self._stop
