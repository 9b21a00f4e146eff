"""The coordinator core: one per job. It owns membership, knobs and the decision about every step.

Workers wait for decisions, nobody waits for metrics: `handle` decides, `settle` writes the books of it afterwards, in
order, and the next call does so first if nobody has.

As with shards, the host makes the state durable before it delivers what `handle` returned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from raysync.control.view import View
from raysync.data import Sampler
from raysync.engine import messages as m
from raysync.engine.knob_board import KnobBoard
from raysync.engine.membership import Membership
from raysync.engine.plain import Fields, dump, load
from raysync.engine.ports import Keep, Probe, keep_nothing, no_probe
from raysync.engine.read_gate import ReadGate
from raysync.engine.snapshots import Snapshots
from raysync.engine.tally import Tally
from raysync.errors import ProtocolError
from raysync.knobs import Knobs
from raysync.metrics import Event, EventLog
from raysync.spec import JobSpec
from raysync.sync.base import Choice, StepContext
from raysync.sync.bound import may_read, staleness

_REMEMBERED_STEPS = 4


class Coordinator:
    """Collects what workers saw and answers with decisions that carry a reason and the knobs' version."""

    _FIELDS: ClassVar[Fields] = {
        "round": int,
        "next_step": int,
        "ended": bool,
        "_final_seen": bool,
        "_metered_step": int,
        "_stop_reason": str | None,
        "_round_participants": tuple[int, ...],
        "_reports": dict[int, dict[int, m.Report]],
        "_decisions": dict[int, m.Decision],
        "_memory": dict[str, float],
    }

    def __init__(self, spec: JobSpec, *, probe: Probe = no_probe, keep: Keep = keep_nothing) -> None:
        self._probe, self._keep = probe, keep
        self._asynchronous = spec.strategy.asynchronous
        self.board = KnobBoard(spec)
        self.membership = Membership(spec.scale.shards)
        self.log = EventLog(spec.name)
        self.tally = Tally(spec)
        self.gate = ReadGate()
        self.snapshots = Snapshots()
        self.round = -1
        """The last synchronisation decided on."""
        self.next_step = 0
        """The next step to decide about (asynchronous: unused)."""
        self.ended = False
        """The last decision has been made; workers finish and part."""
        self._final_seen = False
        """Somebody has seen the last round, so it is not lost with the workers."""
        self._metered_step = -1
        self._stop_reason: str | None = None
        self._round_participants: tuple[int, ...] = ()
        self._reports: dict[int, dict[int, m.Report]] = {}
        self._decisions: dict[int, m.Decision] = {}
        """Recent decisions by step; asynchronous: the last one by worker."""
        self._memory: dict[str, float] = {}
        self._counter: Sampler | None = None
        self._unsettled: list[Callable[[], None]] = []
        """What is still to be written into the books."""

    @property
    def spec(self) -> JobSpec:
        """The job with the knobs now in force."""
        return self.board.spec

    @property
    def knobs(self) -> Knobs:
        """The knobs now in force."""
        return self.board.knobs

    @property
    def view(self) -> View:
        """The present view."""
        return self.membership.view

    @property
    def finished(self) -> bool:
        """Whether the job has ended and every worker has said farewell."""
        return self._final_seen and self.membership.all_parted

    @property
    def steps_made(self) -> int:
        """How many steps have been decided on."""
        return max(self.gate.clocks.values(), default=-1) + 1 if self._asynchronous else self.next_step

    # What the host calls

    def handle(self, message: m.Message, now_s: float = 0.0) -> list[m.Send]:
        """Take in a message and return what to say to whom."""
        self._begin(now_s)
        sends: list[m.Send] = []
        match message:
            case m.Join():
                sends = self._on_join(message)
            case m.Report():
                sends = self._on_report(message)
            case m.Leave():
                self.membership.ask_out(message.worker)
            case m.Farewell():
                sends = self._on_farewell(message)
            case m.ViewSeen():
                self.membership.seen(message)
            case m.SnapshotPart():
                self._on_snapshot_part(message)
            case m.Died():
                sends = self._on_died(message.worker)
            case m.Turn():
                step = self.gate.low_clock + 1 if self._asynchronous else self.next_step
                self.board.turn(message.changes, message.expected_version, step)
            case m.TakeSnapshot():
                self.snapshots.due = True
            case m.Stop():
                self._stop_reason = message.reason
            case _:
                raise ProtocolError(m.COORDINATOR, f"a coordinator does not expect {type(message).__name__}")
        return sends + self._advance(now_s)

    def retry(self) -> list[m.Send]:
        """Return again what shards and workers have not answered."""
        return self.membership.unheard() + self.snapshots.unanswered()

    def advance(self, now_s: float = 0.0) -> list[m.Send]:
        """Make every decision that can be made now."""
        self._begin(now_s)
        return self._advance(now_s)

    def settle(self) -> None:
        """Write the books: metrics of the steps reported, and what was decided."""
        unsettled, self._unsettled = self._unsettled, []
        for write in unsettled:
            write()

    def take_events(self) -> list[Event]:
        """Return what has happened since the last call."""
        self.settle()
        return self.log.take()

    def _begin(self, now_s: float) -> None:
        self.settle()
        self.log.now_s = now_s

    def _advance(self, now_s: float) -> list[m.Send]:
        limit_s = self.spec.budget.time_s
        if limit_s is not None and now_s >= limit_s and self._stop_reason is None:
            self._stop_reason = f"{now_s:.1f} s of {limit_s:.1f} s are spent"
        if self.view.number == 0 and len(self.membership.joining) < self.spec.scale.workers:
            self.ended = self._final_seen = self._stop_reason is not None
            return []
        sends = self._advance_clocks() if self._asynchronous else self._advance_steps()
        if sends:
            self._probe("coordinator.decided")
        return sends

    # Lock-step strategies

    def _advance_steps(self) -> list[m.Send]:
        sends: list[m.Send] = []
        while not self.ended:
            if sends or self.spec.budget.target is not None:
                self.settle()  # what comes next depends on it
            if not self.view.members:
                if not self.membership.joining:
                    self.ended = self._final_seen = self._stop_reason is not None
                    break
                sends += self._change_view(self.next_step, admitted=tuple(sorted(self.membership.joining)))
            needed = self.next_step - (1 if self.spec.strategy.decides_ahead else 0)
            if not self._all_reported(needed):
                break
            if self.snapshots.due:
                if self._all_reported(self.next_step):
                    sends += self._begin_snapshot()
                break
            if self.board.paused and self._stop_reason is None:
                break
            sends += self._decide(self.next_step, needed)
        return sends

    def _all_reported(self, step: int) -> bool:
        return step < 0 or {*self.membership.active(step)} <= self._reports.get(step, {}).keys()

    def _decide(self, step: int, seen_step: int) -> list[m.Send]:
        self._turn_knobs(step)
        active = self.membership.active(step)
        admitted = tuple(sorted(self.membership.joining))
        leaving = tuple(worker for worker in self.membership.wants_out if worker in active)
        choice = self._choose(step, seen_step, active)
        forced = self._forced(step, admitted, leaving)
        if forced is not None:
            choice = Choice(True, forced, None, choice.score, choice.memory)
        self._memory = dict(choice.memory)
        if choice.sync:
            self.round, self._round_participants = self.round + 1, choice.participants or active
        self.next_step, self.ended = step + 1, self._is_last(step)
        sends = self._change_view(step + 1, admitted=admitted, leaving=leaving) if admitted or leaving else []
        decision = m.Decision(
            view=self.view.number,
            step=step,
            sync=choice.sync,
            reason=choice.reason,
            knobs=self.knobs,
            round=self.round,
            participants=self._round_participants if choice.sync else (),
            # Relayed gradients leave the replicas apart; what must bring them together averages parameters.
            payload_kind="delta" if forced is not None and self.spec.strategy.relays else self.spec.strategy.payload,
            leavers=leaving,
            final=self.ended,
        )
        self._remember(decision, choice)
        return sends + [m.Send(m.worker_address(worker), decision) for worker in active]

    def _choose(self, step: int, seen_step: int, active: tuple[int, ...]) -> Choice:
        reports = self._reports.get(seen_step, {})
        context = StepContext(
            step=step,
            last_sync_step=self.tally.last_sync_step,
            members=active,
            values=tuple(reports[worker].values for worker in active if worker in reports),
            total_steps=self.spec.budget.steps,
            steps_per_lap=self._sampler().steps_per_lap(len(active)),
            lr_at=self.spec.lr_at,
            seed=self.spec.seed,
            memory=self._memory,
        )
        return self.spec.strategy.decide(context)

    def _forced(self, step: int, admitted: tuple[int, ...], leaving: tuple[int, ...]) -> str | None:
        """Return why this step must synchronise whatever the strategy says, if it must."""
        if self._is_last(step):
            return self._stop_reason or "the last step: everybody contributes to the final model"
        if admitted:
            return f"worker {admitted[0]} joins and needs the current model"
        if leaving:
            return f"worker {leaving[0]} leaves and hands its work over"
        return None

    def _is_last(self, step: int) -> bool:
        return step >= self.spec.budget.steps - 1 or self._stop_reason is not None

    def _remember(self, decision: m.Decision, choice: Choice) -> None:
        self._decisions[decision.step] = decision
        self._unsettled.append(partial(self._write, decision, choice))
        oldest = decision.step - _REMEMBERED_STEPS
        self._reports = {step: reports for step, reports in self._reports.items() if step >= oldest}
        self._decisions = {step: decision for step, decision in self._decisions.items() if step >= oldest}
        every = self.spec.checkpoint.every_rounds
        if every is not None and choice.sync and (self.round + 1) % every == 0 and not self.ended:
            self.snapshots.due = True

    def _write(self, decision: m.Decision, choice: Choice) -> None:
        self.tally.decided(decision.step, choice)
        data = {"sync": choice.sync, "reason": choice.reason, "round": decision.round, "score": choice.score}
        self.log.add("decision", decision.step, decision.knobs.version, data)

    # Asynchronous strategies

    def _advance_clocks(self) -> list[m.Send]:
        sends: list[m.Send] = []
        if self.membership.joining and not self.ended:
            sends += self._change_view(self.gate.low_clock + 1, admitted=tuple(sorted(self.membership.joining)))
        if not self.view.members and self._stop_reason is not None:
            self.ended = self._final_seen = True
        all_held = bool(self.view.members) and {*self.view.members} <= self.gate.waiting.keys()
        if self.snapshots.due:
            return sends + self._begin_snapshot() if all_held else sends
        if self.board.paused and self._stop_reason is None:
            return sends
        if self.gate.waiting:
            self._turn_knobs(min(self.gate.waiting.values()))
        if all_held and self._is_last(min(self.gate.waiting.values())):
            self.ended = True
        for worker, clock in sorted(self.gate.waiting.items()):
            sends += self._grant(worker, clock)
        return sends

    def _grant(self, worker: int, clock: int) -> list[m.Send]:
        """Let a worker read for its next clock if the bound allows; the last read waits for everybody's last push."""
        allowed, reason = may_read(clock + 1, self.gate.clocks, self.spec.strategy.staleness_limit or 0)
        if not self.ended and (self._is_last(clock) or not allowed):
            return []
        self.tally.read(staleness(clock + 1, self.gate.clocks))
        leaving = (worker,) if worker in self.membership.wants_out and not self.ended else ()
        sends = self._change_view(self.gate.low_clock + 1, leaving=leaving) if leaving else []
        self.gate.release(worker)
        decision = m.Decision(
            view=self.view.number,
            step=clock,
            sync=True,
            reason=(self._stop_reason or "the last clock") if self.ended else reason,
            knobs=self.knobs,
            round=clock,
            payload_kind="gradient",
            leavers=leaving,
            final=self.ended,
        )
        self._decisions[worker] = decision
        return [*sends, m.Send(m.worker_address(worker), decision)]

    # Reports and knobs

    def _on_report(self, report: m.Report) -> list[m.Send]:
        worker, to = report.worker, m.worker_address(report.worker)
        if worker not in self.view.everyone:
            return [m.Send(to, m.NewView(view=self.view))]
        if report.wants_out:
            self.membership.ask_out(worker)
        sends = [m.Send(to, m.NewView(view=self.view))] if report.view != self.view.number else []
        if self._is_news(report):
            self._record(report)
            return sends
        # Said before: its decision may have been lost.
        decision = self._decisions.get(worker if self._asynchronous else report.step)
        return [*sends, m.Send(to, decision)] if decision is not None and decision.step == report.step else sends

    def _is_news(self, report: m.Report) -> bool:
        if report.worker in self.view.leavers or report.step < self.membership.first_steps[report.worker]:
            return False
        if self._asynchronous:
            return report.step > self.gate.clocks[report.worker]
        return report.step >= self.next_step - 1 and report.worker not in self._reports.get(report.step, {})

    def _record(self, report: m.Report) -> None:
        self.membership.heard_from(report.worker)
        if self._asynchronous:
            self.gate.pushed(report.worker, report.step)
            self._meter(report.step, {report.worker: report}, report.worker)
            return
        self._reports.setdefault(report.step, {})[report.worker] = report
        self._meter_complete()

    def _meter_complete(self) -> None:
        """Turn every step that all have reported into metrics, once, in order."""
        for step in sorted(step for step in self._reports if step > self._metered_step):
            if not self._all_reported(step):
                break
            self._metered_step = step
            self._unsettled.append(partial(self._meter, step, self._reports[step]))

    def _meter(self, step: int, reports: dict[int, m.Report], worker: int | None = None) -> None:
        metrics = self.tally.metrics(reports, self.log.now_s)
        self.log.add("metrics", step, self.knobs.version, metrics, worker)
        target = self.spec.budget.target
        if target is not None and self._stop_reason is None and target.reached(metrics):
            self._stop_reason = (
                f"{target.metric} reached {metrics[target.metric]:.4g}, the target is {target.value:.4g}"
            )

    def _turn_knobs(self, step: int) -> None:
        for turned in self.board.apply():
            self.settle()
            data = {"before": turned.before, "after": turned.after, "asked_step": turned.asked_step}
            self.log.add("knobs", step, turned.version, data)
            if "delta" in turned.after:
                self._memory = {}

    # Membership

    def _on_join(self, join: m.Join) -> list[m.Send]:
        sends = self.membership.ask_in(join)
        if self.ended and join.worker in self.membership.joining:
            return self._change_view(self.view.start_step, admitted=(join.worker,))
        return sends

    def _on_died(self, worker: int) -> list[m.Send]:
        if not self.membership.declare_dead(worker):
            return []
        self.tally.died(worker)
        start_step = self.gate.low_clock + 1 if self._asynchronous else self.next_step + 1
        sends = self._change_view(max(start_step, self.view.start_step), gone=(worker,))
        self._meter_complete()
        return sends

    def _on_farewell(self, farewell: m.Farewell) -> list[m.Send]:
        self._final_seen = self._final_seen or farewell.finished
        if self.membership.part(farewell.worker) and farewell.metrics:
            self.log.add("metrics", self.steps_made, self.knobs.version, farewell.metrics, farewell.worker)
        return [m.Send(m.worker_address(farewell.worker), m.Goodbye())]

    def _change_view(
        self, start_step: int, admitted: tuple[int, ...] = (), leaving: tuple[int, ...] = (), gone: tuple[int, ...] = ()
    ) -> list[m.Send]:
        """Number a new view, tell everybody, and welcome the newcomers."""
        self.settle()
        old = self.view
        cursor = self._sampler().advance(old.cursor, len(old.members), max(0, start_step - old.start_step))
        self.membership.change(start_step, cursor, self.round + 1, admitted, leaving, gone)
        self.snapshots.abandon()
        for worker in (*leaving, *gone):
            self.gate.remove(worker)
        for worker in leaving:
            self.tally.left(worker)
        for worker in admitted:
            self._admit(worker, start_step)
        data = {"number": self.view.number, "members": list(self.view.members)}
        data |= {"joined": list(admitted), "left": list(leaving), "died": list(gone)}
        self.log.add("view", start_step, self.knobs.version, data)
        return self.membership.news()

    def _admit(self, worker: int, start_step: int) -> None:
        self.tally.came_back(worker)
        step = max(start_step, self.membership.joining[worker].step) if self._asynchronous else start_step
        if self._asynchronous:
            self.gate.admit(worker, step)
            self._decisions.pop(worker, None)
        welcome = m.Welcome(
            view=self.view,
            knobs=self.knobs,
            step=step,
            round=step - 1 if self._asynchronous else self.round,
            participants=self._round_participants,
            finished=self.ended,
        )
        self.membership.welcome(worker, welcome)

    def _sampler(self) -> Sampler:
        """Knows how the data is dealt out; needs no labels to count steps."""
        if self._counter is None or self._counter.num_samples != self.membership.num_samples:
            data = self.spec.data.model_copy(update={"label_skew": None})
            self._counter = Sampler(data, self.membership.num_samples, self.spec.seed)
        return self._counter

    # Checkpoints

    def _begin_snapshot(self) -> list[m.Send]:
        if self.membership.leavers_left:
            return []  # first they hand over what they have not sent
        workers, shards = map(m.worker_address, self.view.members), map(m.shard_address, range(self.spec.scale.shards))
        return self.snapshots.begin((*workers, *shards))

    def _on_snapshot_part(self, part: m.SnapshotPart) -> None:
        if self.snapshots.arrived(part):
            data = {"snapshot": part.snapshot, "round": self.round}
            self.log.add("snapshot", self.steps_made, self.knobs.version, data)
            state = self.state_dict()
            state["membership"]["joining"] = {}  # who is only on the way in is not part of the checkpoint
            state["own"]["_stop_reason"] = None  # nor is the wish to end: whoever goes on from here goes on
            self._keep(part.snapshot, m.COORDINATOR, state)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return everything the coordinator knows, as plain data."""
        self.settle()
        return {"own": dump(self, self._FIELDS), **{name: part.state_dict() for name, part in self._parts().items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; call `advance` and `retry` afterwards."""
        load(self, self._FIELDS, state["own"])
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        names = ("board", "membership", "gate", "snapshots", "tally", "log")
        return {name: getattr(self, name) for name in names}
