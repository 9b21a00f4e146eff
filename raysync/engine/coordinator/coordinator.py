"""The coordinator core: one per job. It owns membership, knobs, checkpoints and the history; who waits for whom, and so
when a step is decided on, is its pacing's.

Workers wait for decisions, no core waits for metrics: `handle` decides, `settle` writes the books of it afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.address import COORDINATOR, Address, Role, shard
from raysync.control.placing import first_backups
from raysync.control.view import View
from raysync.data import Sampler
from raysync.engine import messages as m
from raysync.engine.checkpoints import Checkpoints
from raysync.engine.coordinator.books import Books
from raysync.engine.coordinator.ending import Ending
from raysync.engine.coordinator.knob_board import KnobBoard
from raysync.engine.coordinator.membership import Membership
from raysync.engine.coordinator.pipelines import Pipelines
from raysync.engine.coordinator.recall import Past, Recall
from raysync.engine.effects import Cut, Effects, Send
from raysync.engine.pacing import pacing_of
from raysync.engine.ports import Probe, no_probe
from raysync.errors import ProtocolError
from raysync.knobs import Knobs
from raysync.spec import JobSpec
from raysync.sync.base import Choice

_REPEAT_EVERY_S = 5.0
"""So often what has no answer is repeated where messages come all the time."""
_ADVANCE_EVERY_S = 0.2
"""So often the time budget is looked at."""


class Coordinator:
    """Collects what workers saw and answers with decisions that carry a reason and the knobs' version."""

    done = False
    """A coordinator answers until it is stopped."""
    address = COORDINATOR

    def __init__(
        self, address: Address, spec: JobSpec, *, probe: Probe = no_probe, waits_for_begin: bool = False
    ) -> None:
        self._probe = probe
        self._waits_for_begin = waits_for_begin
        """Whether it must be told to `Begin` before its first decision."""
        self._num_first = spec.scale.workers
        """How many workers the first view waits for."""
        self._pipelines = Pipelines(spec.scale.stages, spec.stage_lead)
        self.board = KnobBoard(spec)
        self.membership = Membership(tuple(shard(slot) for slot in range(spec.scale.shards)), first_backups(spec))
        self.ending = Ending()
        self.books = Books(spec, lambda metrics: self.ending.look_at_target(metrics, self.spec.budget))
        self.checkpoints = Checkpoints()
        self.pacing = pacing_of(spec)(self)
        self._counter: Sampler | None = None
        self._resumes = False
        """It goes on from a saved state, and has not said so yet."""
        self._recall: Recall | None = None
        """While it takes over from another: what it asks, and has been told."""
        self._advanced_s = self._repeated_s = 0.0

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
        """Whether the job has ended, its model is saved, and every worker has said farewell."""
        return self.ending.is_complete and self.membership.all_parted

    @property
    def is_asking(self) -> bool:
        """Whether it takes over from another and does not know yet what that one knew."""
        return self._recall is not None

    @property
    def steps_made(self) -> int:
        """How many steps have been decided on."""
        return self.pacing.steps_made

    @property
    def is_held(self) -> bool:
        """Whether no decision is made now: the job is paused, or has fewer workers than `min_workers`, and was not
        stopped.
        """
        return (self.board.paused or self._is_short) and self.ending.reason is None

    @property
    def _is_short(self) -> bool:
        """Whether those who are in and those who join are too few; joiners are counted only where that matters."""
        least = self.spec.scale.min_workers
        if len(self.view.members) >= least:
            return False
        num_workers = len({*self.view.members, *self.membership.joining})
        return num_workers < least and self.spec.strategy.needs.pacing != "free_running"

    # What the host calls

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        """Take in a message and return what to say to whom."""
        self.books.begin(now_s)
        if isinstance(message, m.Begin) and message.succession is not None and self._is_new(message.succession):
            return self._take_over(message, message.succession, now_s)
        if self._recall is not None:
            return self._while_asking(self._recall, message, now_s)
        gathered = self._pipelines.gather(message)
        if gathered is None:
            effects = self._pipelines.astray(message, self.view)
        else:
            effects = self._pipelines.spread(self._handle(gathered, now_s))
        if isinstance(message, m.Died):
            effects += self._pipelines.survivors(message.who, self.view)
        return effects

    def _handle(self, message: m.Message, now_s: float) -> Effects:
        effects: Effects = []
        match message:
            case m.Join():
                effects = self._on_join(message)
            case m.Report():
                effects = self._on_report(message)
            case m.Held():
                effects = self.pacing.held(message)
            case m.AskView():
                is_old = message.view != self.view.number
                view = self.membership.present_view
                return [Send(message.sender.at(0), m.NewView(view=view))] if is_old else []
            case m.Leave():
                self.membership.ask_out(message.sender)
            case m.Farewell():
                effects = self._on_farewell(message)
            case m.Judged():
                if not self.ending.model_is_safe:  # else the final model was judged meanwhile
                    self.books.judged(message)
            case m.ViewSeen():
                self.membership.seen(message)
            case m.Account():
                return []  # an answer that was given twice
            case m.CheckpointCut():
                self._on_checkpoint_cut(message)
            case m.CheckpointPart():
                effects = self._on_checkpoint_part(message)
            case m.PartKept():
                self._on_part_kept(message)
            case m.Died():
                effects = self._on_died(message.who)
            case m.StandBy():
                effects = self._reseat(self.membership.stand_by(message.who))
            case m.Covered():
                effects = self._reseat(self.membership.cover(message))
            case m.Begin():
                effects = self._on_begin(message)
            case m.Turn():
                self.board.turn(message.changes, message.expected_version, self.pacing.next_step, message.by)
            case m.TakeCheckpoint():
                self.checkpoints.due = True
            case m.Stop():
                self.ending.stop(message.reason)
            case _:
                raise ProtocolError(str(self.address), f"a coordinator does not expect {type(message).__name__}")
        return effects + self._advance(now_s)

    def retry(self, now_s: float = 0.0) -> Effects:
        """Return again what shards and workers have not answered, and every decision that can be made now."""
        self._resumes = False
        if self._recall is not None:
            return self._recall.ask()
        again = self.membership.unheard() + self.checkpoints.unanswered() + self.pacing.call_again()
        return self._pipelines.spread(again) + self.advance(now_s)

    def advance(self, now_s: float = 0.0) -> Effects:
        """Make every decision that can be made now."""
        self.books.begin(now_s)
        if self._recall is not None:
            return []
        return self._pipelines.spread(self._advance(now_s))

    def is_ready(self, now_s: float = 0.0) -> bool:
        """Return whether a saved state waits to be gone on from, the time budget to be looked at, or a step has waited
        long enough for the late.
        """
        has_limit = self.spec.budget.time_s is not None
        is_due = now_s - self._advanced_s > (_ADVANCE_EVERY_S if has_limit else _REPEAT_EVERY_S)
        leaves_late = self.due_s is not None and now_s >= self.due_s
        return self._resumes or leaves_late or (is_due and (has_limit or self._repeats_often))

    @property
    def due_s(self) -> float | None:
        """When it has work of its own to do next, as far as that is known: a step waits for the late no longer."""
        is_idle = self._waits_for_begin or self._recall is not None or self.view.number == 0
        return None if is_idle else self.pacing.due_s

    def work(self, now_s: float = 0.0) -> Effects:
        """Go on from a saved state; watch the time budget."""
        repeats = self._repeats_often and now_s - self._repeated_s > _REPEAT_EVERY_S
        self._advanced_s = now_s
        if not self._resumes and not repeats:
            return self.advance(now_s)
        self._repeated_s = now_s
        return self.retry(now_s)

    @property
    def _repeats_often(self) -> bool:
        """Whether nobody stops for lack of an answer: it must be asked for though messages come all the time."""
        return self.pacing.repeats_often or self.checkpoints.is_writing

    def settle(self) -> Effects:
        """Write the books, and return what has happened."""
        return self.books.take()

    def _advance(self, now_s: float) -> Effects:
        if self._waits_for_begin:
            return []
        self.ending.look_at_time(now_s, self.spec.budget)
        if self.view.number == 0:
            self.turn_knobs(0)  # what was turned before the first step is in force from it on
            if len(self.membership.joining) < min(self._num_first, self.spec.scale.workers):
                self.ending.without_workers()
                return []
        effects = self.pacing.advance()
        if effects:
            self._probe("coordinator.decided")
        return effects

    # What the pacing asks for

    def is_last(self, step: int) -> bool:
        """Return whether the job ends with a step."""
        return step >= self.spec.budget.steps - 1 or self.ending.reason is not None

    def steps_per_lap(self, num_workers: int) -> int:
        """Return in how many steps so many workers read the data once."""
        return self._sampler().steps_per_lap(num_workers)

    def turn_knobs(self, step: int) -> Effects:
        """Put what was turned in force from a step on: a new view, so that all hear of it."""
        turned = self.board.apply()
        for change in turned:
            self.books.turned(step, change)
            self.pacing.knobs_turned(frozenset(change.after))
        if not turned or self.view.number == 0:
            return []
        self.membership.retune(self.knobs)
        return self.membership.news()

    def change_view(
        self,
        start_step: int,
        *,
        admitted: tuple[Address, ...] = (),
        leaving: tuple[Address, ...] = (),
        gone: tuple[Address, ...] = (),
    ) -> Effects:
        """Number a new view, tell every member, and welcome the newcomers."""
        self.books.settle()
        old = self.view
        cursor = self._sampler().advance(old.cursor, len(old.members), max(0, start_step - old.start_step))
        self.membership.change(start_step, cursor, self.pacing.next_round, self.knobs, admitted, leaving, gone)
        self._lost_parts(gone)
        for worker in (*leaving, *gone):
            self.pacing.remove(worker)
        for worker in leaving:
            self.books.metrics.left(worker)
        for worker in admitted:
            self._admit(worker, start_step)
        self.books.viewed(start_step, self.view, admitted, leaving, gone)
        self.pacing.view_changed()
        return self.membership.news()

    @property
    def wants_checkpoint(self) -> bool:
        """Whether all are to wait, so that a checkpoint can be taken; not before the last one is written."""
        return self.checkpoints.due and not self.checkpoints.is_writing

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether no decision may be made now: a checkpoint is to be taken; or one is being written that could not be
        taken again after the last step.
        """
        return self.wants_checkpoint or (self.checkpoints.is_writing and self.is_last(self.pacing.next_step))

    def begin_checkpoint(self) -> Effects:
        """Have every core copy itself, once leavers have handed over what they have not sent."""
        if self.membership.leavers_left:
            return []
        return self.checkpoints.begin((*self.view.members, *self.view.servers))

    def record(self, decision: m.Decision, choice: Choice) -> None:
        """Have a decision written down; a checkpoint may be due after it."""
        self.books.decided(decision, choice)
        if choice.sync:
            self.closed(decision.round)

    def closed(self, round: int) -> None:
        """A round has closed, or is about to: a checkpoint is due after every so many, and after the first."""
        every = self.spec.checkpoint.every_rounds
        is_due = every is not None and ((round + 1) % every == 0 or not self.checkpoints.has_begun)
        if is_due and not self.ending.is_decided:
            self.checkpoints.due = True

    # Taking over

    def _is_new(self, succession: m.Succession) -> bool:
        """Return whether it has not taken over yet: it may be told twice."""
        return self._recall is None and succession.life > self.membership.life

    def _take_over(self, begin: m.Begin, succession: m.Succession, now_s: float) -> Effects:
        """Ask every core what it knows before anything is decided; what the host says meanwhile is kept."""
        self._recall = Recall(succession, self.spec.scale.stages)
        self._recall.kept.append(msgspec.structs.replace(begin, succession=None))
        return self._recall.ask() + self._once_told(self._recall, now_s)

    def _while_asking(self, recall: Recall, message: m.Message, now_s: float) -> Effects:
        match message:
            case m.Account():
                recall.told(message)
            case m.Died():
                recall.died(message.who)
                recall.kept.append(message)
            case m.Begin() | m.Turn() | m.Stop() | m.TakeCheckpoint() | m.Leave() | m.StandBy():
                recall.kept.append(message)
        return self._once_told(recall, now_s)

    def _once_told(self, recall: Recall, now_s: float) -> Effects:
        """Go on from what all have told; whoever has missed something repeats itself with the new view."""
        if not recall.is_complete:
            return []
        self._recall = None
        past, succession = recall.past(), recall.succession
        self.membership.begin_life(succession.life)
        effects = self._go_on(past, succession) if past.view.number > 0 else []
        for message in recall.kept:
            effects += self.handle(message, now_s)
        return effects

    def _go_on(self, past: Past, succession: m.Succession) -> Effects:
        self.board.resume(past.knobs)
        self.books.resume(past)
        self.membership.resume(past, succession)
        for server in (*past.view.servers, *past.view.backups):
            if server is not None and server not in succession.roster:
                self.membership.shard_died(server)
        self.pacing.resume(past)
        self.checkpoints.pass_over(past.checkpoint)
        has_ended = bool({*past.view.members} & {*succession.parted})
        self.ending.is_decided = has_ended or (past.last is not None and past.last.final)
        if has_ended:
            self.ending.all_is_safe()
        if past.absent:
            for worker in past.absent:
                self.membership.declare_dead(worker)
                self.books.metrics.died(worker)
            start_step = max(self.pacing.step_after_a_death, self.view.start_step)
            effects = self.change_view(start_step, gone=past.absent)
        else:
            self.membership.retune(self.knobs)
            effects = self.membership.news()
        last = past.last
        if last is not None and not self.pacing.applies_on_arrival:
            effects += [Send(worker, last) for worker in self.view.everyone]
        return self._pipelines.spread(effects)

    # Members

    def _on_report(self, report: m.Report) -> Effects:
        if report.sender not in self.view.here:
            return [Send(report.sender, m.NewView(view=self.view))]
        if report.wants_out:
            self.membership.ask_out(report.sender)
        news: Effects = [Send(report.sender, m.NewView(view=self.view))] if report.view != self.view.number else []
        return news + self.pacing.on_report(report)

    def _on_begin(self, begin: m.Begin) -> Effects:
        self._waits_for_begin = False
        self._num_first = begin.workers or self._num_first
        has_begun = self.view.number > 0
        why = "turned after the checkpoint it went on from" if has_begun else "turned before the first step"
        self.board.adopt(begin.knobs, self.steps_made, why)
        return [effect for who in begin.gone for effect in self._on_died(who)]

    def _on_join(self, join: m.Join) -> Effects:
        effects = self.membership.ask_in(join)
        if join.told and self.view.number == 0 and join.sender.index == 0:
            self.books.noticed(join.told)
        if self.ending.is_decided and join.sender in self.membership.joining:
            return self.change_view(self.view.start_step, admitted=(join.sender,))
        return effects

    def _reseat(self, has_changed: bool) -> Effects:
        """Tell all who serves and who follows, if that is news and there is somebody to tell."""
        if not has_changed or self.view.number == 0:
            return []
        self.checkpoints.abandon()  # one that was asked to cut may be gone
        self.membership.retune(self.knobs)
        return self.membership.news()

    def _on_died(self, worker: Address) -> Effects:
        if worker.role is Role.SHARD:
            self._lost_parts((worker,))
            return self._reseat(self.membership.shard_died(worker))
        if not self.membership.declare_dead(worker):
            return []
        self.books.metrics.died(worker)
        start_step = max(self.pacing.step_after_a_death, self.view.start_step)
        effects = self.change_view(start_step, gone=(worker,))
        leader = self.view.members[:1]
        if (
            self.ending.is_decided
            and leader
            and not self.ending.model_is_safe
            and self.membership.has_parted(leader[0])
        ):
            effects.append(Send(leader[0], m.SaveModel()))
        return effects

    def _on_farewell(self, farewell: m.Farewell) -> Effects:
        """Let a worker go; those who have seen the last round only once the final model is saved: if the one who was
        to do it dies, another still can.
        """
        asked = self.checkpoints.asked_again(farewell.sender)
        if asked:
            return asked  # it says farewell again once it is known that its part is written
        is_first, has_just_saved = self.membership.part(farewell.sender), self.ending.farewell(farewell)
        if farewell.metrics and (is_first or has_just_saved):
            self.books.parted(self.steps_made, farewell)
        if farewell.finished and not self.ending.model_is_safe:
            is_next = self.view.members[:1] in ((), (farewell.sender,))
            return [Send(farewell.sender, m.SaveModel())] if is_next else []
        free = {farewell.sender} | ({*self.membership.parted} if has_just_saved else set())
        return [Send(worker, m.Goodbye(life=self.membership.life)) for worker in sorted(free)]

    def _admit(self, worker: Address, start_step: int) -> None:
        self.books.metrics.came_back(worker)
        entry = self.pacing.admit(worker, start_step)
        welcome = m.Welcome(
            view=self.view,
            knobs=self.knobs,
            step=entry.step,
            round=entry.round,
            participants=entry.participants,
            finished=self.ending.is_decided,
            free_until=entry.free_until,
        )
        self.membership.welcome(worker, welcome)

    def _sampler(self) -> Sampler:
        """Knows how the data is dealt out; needs no labels to count steps."""
        if self._counter is None or self._counter.num_samples != self.membership.num_samples:
            data = self.spec.data.model_copy(update={"label_skew": None})
            self._counter = Sampler(data, self.membership.num_samples, self.spec.seed)
        return self._counter

    # Checkpoints

    def _on_checkpoint_cut(self, told: m.CheckpointCut) -> None:
        """Once all have copied themselves the coordinator does, and goes on."""
        if not self.checkpoints.cut_by(told):
            return
        cut, state = self._cut_now(), self.state_dict()
        state["books"] = self.books.going_on(cut.step, told.checkpoint, cut.round)
        state["membership"]["joining"] = {}  # who is only on the way in is not part of the checkpoint
        state["ending"] = Ending().state_dict()  # nor the wish to end: who goes on, goes on
        self.checkpoints.all_cut(cut, state)
        self._probe("coordinator.cut")

    def _cut_now(self) -> Cut:
        view, now_s = self.view, self.books.now_s
        return Cut(self.steps_made, self.last_round, now_s, view.members, view.servers, self.spec)

    def _on_checkpoint_part(self, part: m.CheckpointPart) -> Effects:
        """Complete a checkpoint with its last part; one that cannot be written is an event, and the next is tried."""
        if part.problem is None:
            return self.checkpoints.written(part)
        cut = self.checkpoints.cut or self._cut_now()
        if self.checkpoints.failed(part):
            self.books.checkpoint_failed(cut.step, part.checkpoint, cut.round, part.sender, part.problem)
        return []

    def _on_part_kept(self, outcome: m.PartKept) -> None:
        cut = self.checkpoints.own_written(outcome)
        if cut is None:
            return
        if outcome.problem is not None:
            self.books.checkpoint_failed(cut.step, outcome.checkpoint, cut.round, COORDINATOR, outcome.problem)
        else:
            self.books.checkpointed(cut.step, outcome.checkpoint, cut.round)

    def _lost_parts(self, gone: tuple[Address, ...]) -> None:
        """Cores have died: a checkpoint that lacks a part of theirs is given up, and another one taken soon."""
        number, cut = self.checkpoints.number, self.checkpoints.cut
        if self.checkpoints.lost(gone) and cut is not None:
            self.books.checkpoint_failed(cut.step, number, cut.round, gone[0], "it died before its part was written")
            self.checkpoints.due = not self.ending.is_decided

    @property
    def last_round(self) -> int:
        """The last synchronisation decided on; -1 where there are no rounds."""
        return self.pacing.next_round - 1

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return everything the coordinator knows, as plain data."""
        self.books.settle()
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; the next `work` or `retry` says so."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self._resumes = True

    def begin_anew(self) -> None:
        """Another job goes on from the state just loaded: it has knobs of its own, and tells who is in."""
        self.board.begin_anew(self.pacing.next_step)
        self.books.viewed(self.steps_made, self.view)

    def _parts(self) -> dict[str, Any]:
        names = ("board", "membership", "pacing", "checkpoints", "ending", "books")
        return {name: getattr(self, name) for name in names}
