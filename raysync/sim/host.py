"""The host of a simulated job: the cores, the wires between them, and what is kept of them, on a virtual clock.

Servers that die are succeeded as on Ray: a coordinator by one that asks, a shard by its backup, if the job asks for one
(`scale.replicas`). One without comes back with all it has said (`secure` keeps it), where on Ray the job would go back
to a checkpoint. Where the injector says so a core is ended or stands still, or a message is lost, doubled, delayed or
overtaken. Cores can be cut off from all others, too: those that nobody but them can reach go on as if nothing had
happened, beside whoever took their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
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
_NOTICE_S = 0.5
"""After so long without an answer a core counts as frozen."""
_GIVEN_UP_S = 3.0
"""A worker that is frozen for so long is ended and replaced."""


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
        self._frozen: dict[int, deque[Callable[[], None]]] = {}
        """By core: what it does once it wakes."""
        self._left_out: set[Address] = set()
        """Members that do not answer, and may come back."""
        self._apart: dict[int, Core] = {}
        """Who is cut off from all others."""
        self._untold: list[tuple[Core, Event]] = []
        """What cores that are cut off would have put into the job's history."""
        self._succeeded: dict[Address, Core] = {}
        """Cores in whose place others are, though they live."""
        self._lives = 0
        """How many coordinators there were before the present one."""
        self._asked = initial_knobs(spec)
        """What people have asked for: whoever looks after a job tells a new coordinator."""
        self._stop: m.Stop | None = None
        self.spans: list[Traced] = []
        """What stages did, and when."""
        self._busy: dict[Address, Stage] = {}
        self._due_s: float | None = None
        """When the coordinator has asked for work last."""
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

    def lose(self, addresses: Iterable[Address], down_s: float = 0.3) -> None:
        """End all cores of a node at once; but no shard whose backup has just been lost: that would be two nodes."""
        for address in addresses:
            core = self.cores.get(address)
            if not isinstance(core, Shard) or not self.spec.scale.replicas or self._is_followed(address):
                self.kill(address, down_s)

    def freeze(self, address: Address, for_s: float) -> None:
        """Let a core's process stand still: it hears and says nothing until it wakes, if it has not been ended then."""
        core = self.cores.get(address)
        together = [core]
        if isinstance(core, Shard):  # a process has shards of all stages
            together = [self.cores.get(address.at(stage)) for stage in range(self.spec.scale.stages)]
        for one in together:
            if one is not None and not one.done and id(one) not in self._frozen:
                self._frozen[id(one)] = deque()
                self.after(for_s, partial(self._wake_up, one))
        if core is not None and for_s > _NOTICE_S:
            self.after(_NOTICE_S, lambda: self._notice(core, lambda: id(core) in self._frozen))
        if core is not None and for_s > _GIVEN_UP_S and ROLES[address.role].death is Death.REPLACE:
            self.after(_GIVEN_UP_S, lambda: self._give_up(core))

    def cut_off(self, addresses: Iterable[Address], for_s: float) -> None:
        """Let cores reach only each other for so long; whoever looks after the job is on the other side."""
        if self._apart:
            return
        self._apart = {id(self.cores[address]): self.cores[address] for address in addresses if address in self.cores}
        for core in [*self._apart.values()]:
            if for_s > _NOTICE_S:
                self.after(_NOTICE_S, partial(self._notice, core, lambda: bool(self._apart)))
        self.after(for_s, self._join_up)

    def _join_up(self) -> None:
        self._left_out -= {core.address for core in self._apart.values()}
        self._succeeded = {who: core for who, core in self._succeeded.items() if id(core) not in self._apart}
        self._apart = {}  # whoever was succeeded meanwhile can be ended now
        untold, self._untold = self._untold, []
        for core, event in untold:
            self.note(core, event)
        self._flush_host_messages()

    def _notice(self, core: Core, is_silent: Callable[[], bool]) -> None:
        """A core has not answered for long: leave it out if it may come back, else let another take its place."""
        address = core.address
        if self.cores.get(address) is not core or not is_silent() or core.done:
            return
        if ROLES[address.role].death is Death.REPLACE:
            self._left_out.add(address)
            self.tell(m.Died(who=address))
            return
        if isinstance(core, Shard):
            process = self._shards_with(address)
            if not self._is_followed(address):
                return  # nobody knows what it knows: it is waited for
            self._succeeded |= process
        else:
            self._succeeded[address] = core
        self.kill(address, 0.1)

    @property
    def _has_begun(self) -> bool:
        """Whether there is a view; before, a job that loses a shard starts again."""
        return any(isinstance(core, Shard) and core.serves for core in self.cores.values())

    def _is_followed(self, address: Address) -> bool:
        """Return whether the job would go on without a shard and those it shares a process with."""
        if not self.spec.scale.replicas or not self._has_begun:
            return False
        return SimHost._is_dispensable(self, address.at(0), self._shards_with(address))

    def _shards_with(self, address: Address) -> dict[Address, Shard]:
        """Return the shards of a process."""
        found = {who: self.cores.get(who) for who in (address.at(stage) for stage in range(self.spec.scale.stages))}
        return {who: core for who, core in found.items() if isinstance(core, Shard)}

    def _give_up(self, core: Core) -> None:
        if id(core) in self._frozen and self.cores.get(core.address) is core:
            self.kill(core.address, 0.1)

    def _wake_up(self, core: Core) -> None:
        """A core goes on where it stood still; one that was succeeded says what it was about to say, and is ended."""
        waiting = self._frozen.pop(id(core))
        self._left_out.discard(core.address)
        while waiting and self._lives_on(core):
            if id(core) in self._frozen:
                self._frozen[id(core)].extend(waiting)
                return
            waiting.popleft()()
        self._flush_host_messages()
        if self._succeeded.get(core.address) is core and id(core) not in self._apart:
            del self._succeeded[core.address]

    def _crashed(self, core: Core, crash: Crash) -> None:
        if self.cores.get(core.address) is core:
            self.kill(core.address, crash.fault.delay_s)
        elif self._succeeded.get(core.address) is core:
            del self._succeeded[core.address]

    def _lives_on(self, core: Core) -> bool:
        """Return whether a core is there, or is not yet known to have been succeeded."""
        return self.cores.get(core.address) is core or self._succeeded.get(core.address) is core

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
        if not self._has_begun and not any(core.serves for core in lost.values()):
            return False
        if not any(core.serves for core in lost.values()):
            return all(core.covers is None or core.covers in self.cores for core in lost.values())
        coordinator = self.cores.get(COORDINATOR)
        if isinstance(coordinator, Coordinator) and first in coordinator.membership.covered:
            return coordinator.view.backup_of(first) in self.cores
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
        if fault.action == "freeze":
            self.freeze(address, fault.delay_s)
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
        members = {who: other for who, other in members.items() if who not in self._left_out}
        shards = {who for who in self.cores if who.role is Role.SHARD} | self._coming_back
        succession = m.Succession(
            life=self._lives,
            roster=(*sorted(shards), *(who for who, other in members.items() if not other.done)),
            parted=tuple({who.at(0): None for who, other in members.items() if other.done}),
            told_step=self.ledger.told_step,
            told=() if self.spec.strategy.needs.pacing == "bounded" else self.ledger.told,
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
        injector struck. One that stands still acts once it wakes.
        """
        if id(core) in self._frozen:
            self._frozen[id(core)].append(lambda: self.act(core, action))
            return
        try:
            effects = action()
            self.secure(core, effects)
        except Crash as crash:
            self._crashed(core, crash)
            return
        self._idle_since_s[core.address] = self.now_s
        self.carry_out(core, effects)
        self._after_acting(core)

    def _after_acting(self, core: Core) -> None:
        if id(core) in self._frozen:
            self._frozen[id(core)].append(lambda: self._after_acting(core))
        elif self._lives_on(core):
            self.carry_out(core, core.settle())
            self._schedule_work(core)

    def carry_out(self, core: Core, effects: Effects) -> None:
        """Do what a core asked for; it may be ended when the first of several messages is out."""
        for index, effect in enumerate(effects):
            if id(core) in self._frozen:
                self._frozen[id(core)].append(partial(self.carry_out, core, effects[index:]))
                return
            super().carry_out(core, [effect])
            if not self._lives_on(core):
                return  # it ended meanwhile
            if index == 0 and len(effects) > 1 and isinstance(effect, Send):
                try:
                    self._probe_server(core, "sending")
                except Crash as crash:
                    self._crashed(core, crash)
                    return

    def clock_s(self, core: Core) -> float:
        """Return the virtual time."""
        return self.now_s

    def secure(self, core: Core, effects: Effects) -> None:
        """Keep a server's state; workers promise nothing."""
        is_there = self.cores.get(core.address) is core
        if self._faulty and is_there and ROLES[core.address.role].death is Death.RECOVER:
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
        is_control = message.payload_bytes == 0
        arrival_s = self._wires.arrival_s(str(core.address), str(send.to), size_bytes, self.now_s, own, is_control)
        fault = self._injector.due(type(message).__name__)
        deliver = lambda: self._deliver(send, core)  # noqa: E731
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
        if id(core) in self._frozen:
            self._frozen[id(core)].append(lambda: self._written(core, part))
        elif self.cores.get(core.address) is core:
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
        if id(core) in self._apart:
            self._untold.append((core, event))
            return
        if self.cores.get(core.address) is not core:
            return  # nobody listens to one that was succeeded
        if self.ledger.hear(event, self.now_s) and self._on_event is not None:
            self._on_event(event, self.now_s)

    # The event loop

    def _deliver(self, send: Send, sender: Core) -> None:
        """Hand over what arrives; nothing crosses between those that are cut off and the others."""
        is_apart, core = id(sender) in self._apart, self.cores.get(send.to)
        if is_apart:
            core = self._succeeded.get(send.to, core)
        if core is None or (id(core) in self._apart) != is_apart:
            return
        self.give(core, send.message)
        for late in self._overtaken.pop(send.to, []):
            self.after(0.0, late)

    def _schedule_work(self, core: Core) -> None:
        """Let a worker compute its next step, after as long as a step takes; whoever else has work does it at once."""
        if isinstance(core, Coordinator) and core.due_s is not None and core.due_s != self._due_s:
            self._due_s = core.due_s
            self._clock.at(max(self._due_s, self.now_s), lambda: self._work_if_there(core))
        if isinstance(core, Evaluator) and core.is_ready():
            self.after(0.0, lambda: self._work_if_there(core))
        if isinstance(core, Stage):
            self._schedule_pass(core)
        if not isinstance(core, Worker) or core.phase is not Phase.READY:
            return
        step = core.step

        def compute() -> None:
            if id(core) in self._frozen:
                self._frozen[id(core)].append(compute)
            elif (
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
            if id(core) in self._frozen:
                self._frozen[id(core)].append(compute)
                return
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
        if id(core) in self._frozen:
            self._frozen[id(core)].append(lambda: self._work_if_there(core))
        elif self.cores.get(core.address) is core and core.is_ready(self.now_s):
            self.act(core, lambda: core.work(self.now_s))

    def _tick(self, core: Core, interval_s: float) -> None:
        """Repeat what a core waits for, ever more rarely while nothing comes; only where messages can be lost."""
        if not self._lives_on(core) or core.done or not self._faulty:
            return
        if id(core) in self._frozen:
            self.after(RETRY_S, lambda: self._tick(core, RETRY_S))
            return
        idle = self.now_s - self._idle_since_s.get(core.address, 0.0) >= interval_s * 0.99
        if idle and not core.is_ready(self.now_s):
            self.carry_out(core, core.retry(self.now_s))
        next_s = min(_RETRY_MAX_S, interval_s * 2) if idle else RETRY_S
        self.after(next_s, lambda: self._tick(core, next_s))

    def _tick_coordinator(self) -> None:
        if not self._faulty and self.spec.budget.time_s is None:
            return
        for core in [cores[COORDINATOR] for cores in (self.cores, self._succeeded) if COORDINATOR in cores]:
            self.act(core, partial(core.retry, self.now_s))
        self._flush_host_messages()
        self.after(RETRY_S, self._tick_coordinator)

    def _flush_host_messages(self) -> None:
        """Tell the coordinator what it can be told now; knobs turn once it knows how they stood."""
        while True:
            core = self.cores.get(COORDINATOR)
            if not isinstance(core, Coordinator) or {id(core)} & {*self._frozen, *self._apart}:
                return
            waits = [message for message in self._host_messages if not (core.is_asking and isinstance(message, m.Turn))]
            if not waits:
                return
            message = waits[0]
            self.give(core, message)
            if self.cores.get(COORDINATOR) is not core:
                continue
            self._host_messages.remove(message)
            self._asked = core.board.ahead() if isinstance(message, m.Turn) else self._asked
            self._stop = message if isinstance(message, m.Stop) else self._stop
