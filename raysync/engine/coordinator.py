"""The coordinator core: one per job. It owns membership, knobs and the decision about every step.

As with shards, the host makes the state durable before it delivers what `handle` returned.
"""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.control.view import NO_VIEW, View
from raysync.data import Sampler
from raysync.engine import messages as m
from raysync.engine.ports import Keep, Probe, keep_nothing, no_probe
from raysync.engine.tally import Tally
from raysync.errors import ProtocolError
from raysync.knobs import Knobs, apply_knobs, initial_knobs, turn
from raysync.metrics import EventLog
from raysync.spec import JobSpec
from raysync.sync.base import Choice, StepContext
from raysync.sync.bound import may_read, staleness

_REMEMBERED_STEPS = 4


class Coordinator:
    """Collects what workers saw and answers with decisions that carry a reason and the knobs' version."""

    def __init__(self, spec: JobSpec, *, probe: Probe = no_probe, keep: Keep = keep_nothing) -> None:
        self._submitted, self.spec = spec, spec
        self._probe, self._keep = probe, keep
        self.knobs = initial_knobs(spec)
        self.log = EventLog(spec.name)
        self.tally = Tally(spec)
        self.view = NO_VIEW
        self.round = -1
        self.next_step = 0
        """The next step to decide about (asynchronous: unused)."""
        self.ended = False
        """The last decision has been made; workers finish and part."""
        self._stop_reason: str | None = None
        self._num_samples = self._num_elements = 0
        self._round_participants: tuple[int, ...] = ()
        self._reports: dict[int, dict[int, m.Report]] = {}
        self._decisions: dict[int, m.Decision] = {}
        self._first_steps: dict[int, int] = {}
        self._joining: dict[int, m.Join] = {}
        self._welcomes: dict[int, m.Welcome] = {}
        self._wants_out: list[int] = []
        self._parted: list[int] = []
        self._unseen: list[int] = []
        self._turns: list[dict[str, Any]] = []
        self._memory: dict[str, float] = {}
        self._snapshots = 0
        self._snapshot_due = False
        self._snapshot_waits: list[str] = []
        self.clocks: dict[int, int] = {}
        """Asynchronous: the last clock each member has pushed."""
        self._held: dict[int, int] = {}
        """Asynchronous: members that wait to read, and the clock they have just pushed."""

    @property
    def finished(self) -> bool:
        """Whether the job has ended and every worker has said farewell."""
        return self.ended and bool(self.view.members) and set(self.view.everyone) <= set(self._parted)

    # What the host calls

    def handle(self, message: m.Message, now_s: float = 0.0) -> list[m.Send]:
        """Take in a message and return what to say to whom."""
        sends: list[m.Send] = []
        match message:
            case m.Join():
                sends = self._on_join(message)
            case m.Report():
                sends = self._on_report(message)
            case m.Leave():
                if message.worker in self.view.members and message.worker not in self._wants_out:
                    self._wants_out.append(message.worker)
            case m.Farewell():
                sends = self._on_farewell(message)
            case m.ViewSeen():
                if message.number == self.view.number and message.shard in self._unseen:
                    self._unseen.remove(message.shard)
            case m.SnapshotPart():
                self._on_snapshot_part(message)
            case m.Died():
                sends = self._on_died(message.worker)
            case m.Turn():
                turned = turn(self._submitted, self._pending_knobs(), message.changes, message.expected_version)
                self._turns.append(dict(message.changes))
                assert turned.version == self.knobs.version + len(self._turns)
            case m.TakeSnapshot():
                self._snapshot_due = True
            case m.Stop():
                self._stop_reason = message.reason
            case _:
                raise ProtocolError(m.COORDINATOR, f"a coordinator does not expect {type(message).__name__}")
        return sends + self.advance(now_s)

    def retry(self) -> list[m.Send]:
        """Return again what shards and workers have not answered."""
        sends = [m.Send(m.shard_address(shard), m.NewView(view=self.view)) for shard in self._unseen]
        return sends + self._snapshot_requests()

    def advance(self, now_s: float = 0.0) -> list[m.Send]:
        """Make every decision that can be made now."""
        if self._stop_reason is None and self.spec.budget.time_s is not None and now_s >= self.spec.budget.time_s:
            self._stop_reason = f"{now_s:.1f} s of {self.spec.budget.time_s:.1f} s are spent"
        if self.view.number == 0 and len(self._joining) < self.spec.scale.workers:
            return []
        sends = self._advance_clocks() if self.spec.strategy.asynchronous else self._advance_steps()
        if sends:
            self._probe("coordinator.decided")
        return sends

    # Lock-step strategies

    def _advance_steps(self) -> list[m.Send]:
        sends: list[m.Send] = []
        while not self.ended:
            if not self.view.members:
                if not self._joining:
                    break
                sends += self._change_view(admitted=tuple(sorted(self._joining)), start_step=self.next_step)
            needed = self.next_step - (1 if self.spec.strategy.decides_ahead else 0)
            if not self._all_reported(needed) or self._is_paused():
                break
            if self._snapshot_due:
                if self._all_reported(self.next_step) and not self._snapshot_waits:
                    sends += self._begin_snapshot()
                break
            sends += self._decide(self.next_step, needed)
        return sends

    def _all_reported(self, step: int) -> bool:
        expected = {worker for worker in self.view.members if self._first_steps[worker] <= step}
        return step < 0 or expected <= self._reports.get(step, {}).keys()

    def _decide(self, step: int, seen_step: int) -> list[m.Send]:
        self._turn_knobs(step)
        active = tuple(worker for worker in self.view.members if self._first_steps[worker] <= step)
        admitted, leaving = tuple(sorted(self._joining)), tuple(worker for worker in self._wants_out if worker in active)
        choice = self._choose(step, seen_step, active)
        forced = self._forced(step, admitted, leaving)
        if forced:
            choice = Choice(True, forced, None, choice.score, choice.memory)
        self._memory = dict(choice.memory)
        kind = "delta" if forced and self.spec.strategy.relays else self.spec.strategy.payload
        if choice.sync:
            self.round += 1
            self._round_participants = choice.participants or active
        self.next_step, self.ended = step + 1, self._is_last(step)
        sends = self._change_view(admitted, leaving, step + 1) if (admitted or leaving) else []
        decision = m.Decision(
            view=self.view.number,
            step=step,
            sync=choice.sync,
            reason=choice.reason,
            knobs=self.knobs,
            round=self.round,
            participants=self._round_participants if choice.sync else (),
            payload_kind=kind,
            leavers=leaving,
            final=self.ended,
        )
        self._decisions[step] = decision
        self.tally.decided(step, choice)
        self.log.add("decision", step, self.knobs.version, {"sync": choice.sync, "reason": choice.reason, "round": self.round})
        self._forget(step)
        every = self.spec.checkpoint.every_rounds
        self._snapshot_due = self._snapshot_due or bool(every and choice.sync and (self.round + 1) % every == 0 and not self.ended)
        return sends + [m.Send(m.worker_address(worker), decision) for worker in active]

    def _choose(self, step: int, seen_step: int, active: tuple[int, ...]) -> Choice:
        reports = self._reports.get(seen_step, {})
        context = StepContext(
            step=step,
            last_sync_step=self.tally.last_sync_step,
            members=active,
            values=tuple(reports[worker].values for worker in active if worker in reports),
            total_steps=self.spec.budget.steps,
            steps_per_lap=self._sampler.steps_per_lap(len(active)),
            lr_at=self.spec.lr_at,
            seed=self.spec.seed,
            memory=self._memory,
        )
        return self.spec.strategy.decide(context)

    def _forced(self, step: int, admitted: tuple[int, ...], leaving: tuple[int, ...]) -> str | None:
        """Return why this step must synchronise whatever the strategy says, if it must."""
        if self._is_last(step):
            return self._stop_reason or "the last step: everybody's work goes into the final model"
        if admitted:
            return f"worker {admitted[0]} joins and needs the current model"
        if leaving:
            return f"worker {leaving[0]} leaves and hands its work over"
        return None

    def _is_last(self, step: int) -> bool:
        return step >= self.spec.budget.steps - 1 or self._stop_reason is not None

    # Asynchronous strategies

    def _advance_clocks(self) -> list[m.Send]:
        sends: list[m.Send] = []
        if self._joining and not self.ended:
            sends += self._change_view(admitted=tuple(sorted(self._joining)), start_step=self._low_clock() + 1)
        if self._is_paused():
            return sends
        all_held = bool(self.view.members) and set(self.view.members) <= self._held.keys()
        if self._snapshot_due:
            if all_held and not self._snapshot_waits:
                sends += self._begin_snapshot()
            return sends
        if self._turns and self._held:
            self._turn_knobs(min(self._held.values()))
        if all_held and (self._stop_reason is not None or min(self._held.values()) >= self.spec.budget.steps - 1):
            self.ended = True
        for worker, clock in sorted(self._held.items()):
            sends += self._grant(worker, clock)
        return sends

    def _grant(self, worker: int, clock: int) -> list[m.Send]:
        """Let a worker read for its next clock, if the bound allows."""
        bound = self.spec.strategy.staleness_limit or 0
        allowed, reason = may_read(clock + 1, self.clocks, bound)
        last = clock >= self.spec.budget.steps - 1 or self._stop_reason is not None
        if not self.ended and (last or not allowed):
            return []
        self.tally.read(staleness(clock + 1, self.clocks))
        leaving = (worker,) if worker in self._wants_out else ()
        sends = self._change_view((), leaving, self._low_clock() + 1) if leaving and not self.ended else []
        self._held.pop(worker, None)
        decision = m.Decision(
            view=self.view.number,
            step=clock,
            sync=True,
            reason=self._stop_reason or "the last clock" if self.ended else reason,
            knobs=self.knobs,
            round=clock,
            payload_kind="gradient",
            leavers=leaving,
            final=self.ended,
        )
        self._decisions[worker] = decision
        return [*sends, m.Send(m.worker_address(worker), decision)]

    def _low_clock(self) -> int:
        """The clock every member has pushed."""
        return min(self.clocks.values(), default=self.tally.low_clock)

    # Reports and knobs

    def _on_report(self, report: m.Report) -> list[m.Send]:
        worker, to = report.worker, m.worker_address(report.worker)
        if worker not in self.view.everyone:
            return [m.Send(to, m.NewView(view=self.view))]
        sends = [m.Send(to, m.NewView(view=self.view))] if report.view != self.view.number else []
        if self._is_news(report):
            self._record(report)
            return sends
        # Said before: its decision may have been lost.
        decision = self._decisions.get(worker if self.spec.strategy.asynchronous else report.step)
        return [*sends, m.Send(to, decision)] if decision is not None and decision.step == report.step else sends

    def _is_news(self, report: m.Report) -> bool:
        if report.worker in self.view.leavers or report.step < self._first_steps[report.worker]:
            return False
        if self.spec.strategy.asynchronous:
            return report.step > self.clocks[report.worker]
        return report.step >= self.next_step - 1 and report.worker not in self._reports.get(report.step, {})

    def _record(self, report: m.Report) -> None:
        self._welcomes.pop(report.worker, None)
        if self.spec.strategy.asynchronous:
            self.clocks[report.worker] = self._held[report.worker] = report.step
            self.tally.low_clock = self._low_clock()
            self._meter(report.step, {report.worker: report})
            return
        self._reports.setdefault(report.step, {})[report.worker] = report
        if self._all_reported(report.step):
            self._meter(report.step, self._reports[report.step])

    def _meter(self, step: int, reports: dict[int, m.Report]) -> None:
        metrics = self.tally.metrics(reports)
        worker = next(iter(reports)) if self.spec.strategy.asynchronous else None
        self.log.add("metrics", step, self.knobs.version, metrics, worker)
        self._check_target(metrics)

    def _check_target(self, metrics: dict[str, float]) -> None:
        target = self.spec.budget.target
        if target is not None and self._stop_reason is None and target.reached(metrics):
            self._stop_reason = f"{target.metric} reached {metrics[target.metric]:.4g}, the target is {target.value:.4g}"

    def _pending_knobs(self) -> Knobs:
        knobs = self.knobs
        for changes in self._turns:
            knobs = turn(self._submitted, knobs, changes)
        return knobs

    def _turn_knobs(self, step: int) -> None:
        for changes in self._turns:
            before = {name: self.knobs.values[name] for name in changes}
            self.knobs = turn(self._submitted, self.knobs, changes)
            self.spec = apply_knobs(self._submitted, self.knobs)
            self.log.add("knobs", step, self.knobs.version, {"before": before, "after": {name: self.knobs.values[name] for name in changes}})
            if "delta" in changes:
                self._memory = {}
        self._turns = []

    def _is_paused(self) -> bool:
        return bool(self._pending_knobs().values["pause"]) and bool(self.knobs.values["pause"])

    # Membership

    def _on_join(self, join: m.Join) -> list[m.Send]:
        if (self._num_samples, self._num_elements) not in ((0, 0), (join.num_samples, join.num_elements)):
            raise ProtocolError(
                m.worker_address(join.worker),
                f"brings {join.num_samples} samples and a vector of {join.num_elements}, the others {self._num_samples} and {self._num_elements}; "
                "model() and train_data() must give every worker the same",
            )
        self._num_samples, self._num_elements = join.num_samples, join.num_elements
        if join.worker in self.view.members:
            welcome = self._welcomes.get(join.worker)
            return [m.Send(m.worker_address(join.worker), msgspec.structs.replace(welcome, view=self.view))] if welcome else []
        if join.worker in self.view.leavers:
            return []
        self._joining[join.worker] = join
        return self._change_view((join.worker,), start_step=self.next_step) if self.ended else []

    def _on_died(self, worker: int) -> list[m.Send]:
        self._joining.pop(worker, None)
        if worker not in self.view.everyone:
            return []
        self.log.add("view", self.next_step, self.knobs.version, {"died": worker}, worker)
        start_step = self._low_clock() + 1 if self.spec.strategy.asynchronous else self.next_step + 1
        return self._change_view(start_step=max(start_step, self.view.start_step), gone=(worker,))

    def _on_farewell(self, farewell: m.Farewell) -> list[m.Send]:
        if farewell.worker in self.view.everyone and farewell.worker not in self._parted:
            self._parted.append(farewell.worker)
            if farewell.metrics:
                self.log.add("metrics", self.spec.budget.steps, self.knobs.version, farewell.metrics, farewell.worker)
        return [m.Send(m.worker_address(farewell.worker), m.Goodbye())]

    def _change_view(
        self, admitted: tuple[int, ...] = (), leaving: tuple[int, ...] = (), start_step: int = 0, gone: tuple[int, ...] = ()
    ) -> list[m.Send]:
        """Number a new view, tell everybody, and welcome the newcomers."""
        old = self.view
        members = tuple(sorted({*old.members, *admitted} - {*leaving, *gone}))
        leavers = tuple(sorted({*old.leavers, *leaving} - {*gone, *self._parted}))
        cursor = self._sampler.advance(old.cursor, len(old.members), max(0, start_step - old.start_step))
        first_rounds = {worker: old.first_rounds.get(worker, 0) for worker in (*members, *leavers)}
        first_rounds |= dict.fromkeys(admitted, self.round + 1)
        self.view = View(old.number + 1, members, leavers, start_step, cursor, first_rounds)
        self._unseen = list(range(self.spec.scale.shards))
        self._snapshot_waits = []
        for worker in (*leaving, *gone):
            for table in (self.clocks, self._held, self._first_steps, self._welcomes):
                table.pop(worker, None)
            self._wants_out = [other for other in self._wants_out if other != worker]
        for worker in admitted:
            self._admit(worker, start_step)
        data = {"number": self.view.number, "members": list(members), "joined": list(admitted), "left": list(leaving), "died": list(gone)}
        self.log.add("view", start_step, self.knobs.version, data)
        news = [m.worker_address(worker) for worker in self.view.everyone if worker not in admitted]
        sends = [m.Send(to, m.NewView(view=self.view)) for to in [*map(m.shard_address, self._unseen), *news]]
        return sends + [m.Send(m.worker_address(worker), self._welcomes[worker]) for worker in admitted]

    def _admit(self, worker: int, start_step: int) -> None:
        join = self._joining.pop(worker)
        asynchronous = self.spec.strategy.asynchronous
        step = max(start_step, join.step) if asynchronous else start_step
        self._parted = [other for other in self._parted if other != worker]
        self._first_steps[worker] = step
        if asynchronous:
            self.clocks[worker] = step - 1
            self._decisions.pop(worker, None)
        self._welcomes[worker] = m.Welcome(
            view=self.view,
            knobs=self.knobs,
            step=step,
            round=step - 1 if asynchronous else self.round,
            participants=self._round_participants,
            finished=self.ended,
        )

    # Checkpoints: taken while every worker waits for a decision and no round is open

    def _begin_snapshot(self) -> list[m.Send]:
        self._snapshots += 1
        workers = map(m.worker_address, self.view.members)
        self._snapshot_waits = [*workers, *map(m.shard_address, range(self.spec.scale.shards))]
        return self._snapshot_requests()

    def _snapshot_requests(self) -> list[m.Send]:
        return [m.Send(to, m.SnapshotRequest(snapshot=self._snapshots)) for to in self._snapshot_waits]

    def _on_snapshot_part(self, part: m.SnapshotPart) -> None:
        if part.snapshot != self._snapshots or part.sender not in self._snapshot_waits:
            return
        self._snapshot_waits.remove(part.sender)
        if not self._snapshot_waits:
            self._snapshot_due = False
            self.log.add("snapshot", self.next_step, self.knobs.version, {"snapshot": self._snapshots, "round": self.round})
            self._keep(self._snapshots, m.COORDINATOR, self.state_dict())

    # State

    @property
    def _sampler(self) -> Sampler:
        """Knows how the data is dealt out; needs no labels to count steps."""
        return Sampler(self.spec.data.model_copy(update={"label_skew": None}), self._num_samples, self.spec.seed)

    def _forget(self, step: int) -> None:
        for table in (self._reports, self._decisions):
            for old in [key for key in table if key < step - _REMEMBERED_STEPS]:
                del table[old]  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """Return everything the coordinator knows, as plain data."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {"plain": msgspec.to_builtins(plain), "tally": self.tally.state_dict(), "log": self.log.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; call `advance` and `retry` afterwards."""
        for name, kind in _PLAIN.items():
            setattr(self, name, msgspec.convert(state["plain"][name], kind, strict=False))
        self.spec = apply_knobs(self._submitted, self.knobs)
        self.tally.load_state_dict(state["tally"])
        self.log.load_state_dict(state["log"])


_PLAIN: dict[str, Any] = {
    "knobs": Knobs,
    "view": View,
    "round": int,
    "next_step": int,
    "ended": bool,
    "_stop_reason": str | None,
    "_num_samples": int,
    "_num_elements": int,
    "_round_participants": tuple[int, ...],
    "_reports": dict[int, dict[int, m.Report]],
    "_decisions": dict[int, m.Decision],
    "_first_steps": dict[int, int],
    "_joining": dict[int, m.Join],
    "_welcomes": dict[int, m.Welcome],
    "_wants_out": list[int],
    "_parted": list[int],
    "_unseen": list[int],
    "_turns": list[dict[str, Any]],
    "_memory": dict[str, float],
    "_snapshots": int,
    "_snapshot_due": bool,
    "_snapshot_waits": list[str],
    "clocks": dict[int, int],
    "_held": dict[int, int],
}
"""The coordinator's state and its types, the one list that saving and loading share."""
