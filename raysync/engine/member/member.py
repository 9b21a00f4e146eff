"""What data-parallel workers and pipeline stages share: a member joins, fetches, reports its steps, obeys decisions,
pushes and pulls blocks, leaves. How a step is computed is its own business. It knows no network and no clock.

The host calls `work` whenever the member is ready, hands every arriving message to `handle`, carries out what both
return, and calls `retry` when nothing has come for a while: whatever was lost on the way is then said again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from raysync.address import COORDINATOR, Address, shard
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.checkpoints import Contribution
from raysync.engine.effects import Effects, KeepModel, Send
from raysync.engine.exchange import exchange_of
from raysync.engine.member.courier import Courier
from raysync.engine.member.data_views import DataViews
from raysync.engine.member.flight import Flight
from raysync.engine.member.free_run import FreeRun
from raysync.engine.member.phase import Phase
from raysync.engine.member.round import Owed, WorkerRound
from raysync.engine.ports import Measured, Probe
from raysync.engine.training.replica import Replica
from raysync.engine.training.shared_vector import SharedVector
from raysync.engine.training.trainer import Computed, Trainer
from raysync.errors import ProtocolError
from raysync.knobs import Knobs, apply_knobs, initial_knobs
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload

T = TypeVar("T")


class Judge(Protocol):
    """A member's share in evaluations."""

    def judge(self, step: int, view: View) -> m.Judgement | None:
        """Return the member's part of the evaluation at a step; None where it has none."""

    def hand_over(self, step: int, view: View) -> Effects:
        """Return what is sent to be judged elsewhere at a step."""

    def judged(self, answer: m.SendNext) -> None:
        """What was sent has been judged."""

    def judge_all(self) -> dict[str, float]:
        """Return the metrics of the final model."""


class Member:
    """The protocol of a member with coordinator and shards."""

    def __init__(
        self,
        address: Address,
        spec: JobSpec,
        replica: Replica,
        workload: Workload,
        probe: Probe,
        measured: Measured,
    ) -> None:
        self.address, self.id = address, address.index
        self._submitted, self.spec = spec, spec
        self._probe, self._measured = probe, measured
        self._contribution = Contribution(address)
        self.replica = replica
        self.shared = SharedVector(spec, replica)
        self.trainer = Trainer(address, spec, workload, replica, self.shared, probe)
        self.round = WorkerRound(address, spec, self.shared, probe)
        self._exchange = exchange_of(spec)
        self.free_run = FreeRun(address, spec, replica, self.shared) if self._exchange.averages_parts else None
        """How it runs between the steps that all members decide about, where it does."""
        self._lands_late = spec.strategy.needs.lands_late
        self.flight: Flight | None = None
        """The round that is on its way while the member goes on."""
        self._now_s = 0.0
        """When it was last spoken to."""
        self._free_until = 0
        """Up to this step nothing is decided."""
        self._hold: int | None = None
        """The number of the call to a meeting that it has heeded, until it is told where."""
        self._heeded = 0
        """The number of the last call it has heeded."""
        self.phase = Phase.NEW
        self._data_views = DataViews(address)
        self.knobs: Knobs = initial_knobs(spec)
        self.step = 0
        self._computed = False
        self._ticket = 0
        self._life = 0
        """Of the coordinator it obeys."""
        self._wants_out = False
        self._share = 1.0
        """This worker's weight in the mean, for what it hands over."""
        self._welcome: m.Welcome | None = None
        self._is_skipped = False
        """The batch of its step counts for nothing."""
        self._catches_up = False
        """It was left behind, and takes over the state of those who were not."""
        self._untold: tuple[m.Skipped, ...] = ()
        """What was skipped since the last report."""
        self._reports: list[m.Report] = []
        """The last two, or as many as decisions run ahead: an earlier one may still be missed."""
        self._finished = self._saved = False
        self._final_metrics: dict[str, float] = {}

    # What the host calls

    def start(self) -> Effects:
        """Ask to join the job."""
        self.phase = Phase.JOINING
        return self._again()

    def is_ready(self, now_s: float = 0.0) -> bool:
        """Return whether it is to join or to compute."""
        return self.phase is Phase.NEW or (self.phase is Phase.READY and self._hold is None)

    def work(self, now_s: float = 0.0) -> Effects:
        """Join, then compute."""
        return self.start() if self.phase is Phase.NEW else self.compute()

    def settle(self) -> Effects:
        """Return nothing: members leave nothing for later."""
        return []

    # What a kind of member brings

    @property
    def judging(self) -> Judge:
        """Its share in evaluations."""
        raise NotImplementedError

    def compute(self) -> Effects:
        """Compute the next piece of a step."""
        raise NotImplementedError

    def show_model(self, look: Callable[[dict[str, Any]], T]) -> T:
        """Let `look` see the state_dict of the model that is evaluated, and return what it returns."""
        raise NotImplementedError

    _told = ""
    """What whoever runs the job should know before it starts."""

    def _begins(self) -> None:
        """A step may be computed: the member has joined, or the last one is over."""

    def _showing_since(self, step: int) -> None:
        """A round has landed, and what is visible since is what the members of a step begin with."""

    def _breaks_off(self) -> None:
        """The member is not in any more: what it was computing does not count."""

    @property
    def view(self) -> View:
        """The last view this worker has heard of."""
        return self._data_views.newest

    @property
    def done(self) -> bool:
        """Whether the worker has left."""
        return self.phase is Phase.GONE

    def _computed_step(self, computed: Computed, view: View) -> Effects:
        """A step is computed, on data that a view dealt out: report it, and let the decision come."""
        self._computed = True
        self.round.samples += computed.samples
        self._is_skipped = computed.skipped is not None
        skipped, self._untold = (*self._untold, *filter(None, [computed.skipped])), ()
        report = m.Report(
            view=self.view.number,
            sender=self.address,
            step=self.step,
            values=computed.values,
            metrics=self._step_metrics(computed),
            wants_out=self._wants_out,
            judged=self.judging.judge(self.step, view),
            skipped=skipped,
            landed=self._last_landed if self._lands_late else -1,
        )
        self._reports = [*self._reports[-max(1, self.spec.decision_lead) :], report]
        handed = self.judging.hand_over(self.step, view)
        if self.flight is not None:
            handed = handed + self.flight.asks(self._courier(), self._now_s)
        if self.free_run is not None:
            return self._run_on(report) + handed
        if self.round.pushes_first:
            self._enter(Phase.ACKING, range(len(self.shared.blocks)))
            return self._push(self.round.waiting) + handed
        self._enter(Phase.DECIDING)
        self._probe("worker.reported")
        return [Send(COORDINATOR, report), *self._act(), *handed]

    def _run_on(self, report: m.Report) -> Effects:
        """Average a part meanwhile, and go on by itself; where all meet, wait until what is in the air has landed."""
        assert self.free_run is not None
        pushes = self.free_run.start(self.spec, self.view, self.step)
        if self.step < self._free_until:
            self.step, self._computed = self.step + 1, False
            self._begins()
            return [Send(COORDINATOR, report), *pushes]
        self._enter(Phase.LANDING)
        return pushes + self._landed()

    def _on_mean(self, mean: m.PartMean) -> None:
        """Let a mean land."""
        if self.free_run is not None:
            self.free_run.land(self.spec, mean, self.step)

    def _landed(self) -> Effects:
        """Report the step where all meet once nothing is in the air."""
        if self.free_run is None or self.phase is not Phase.LANDING or self.free_run.parts.in_flight:
            return []
        self._enter(Phase.DECIDING)
        self._probe("worker.reported")
        return [*self._again(), *self._act()]

    def _heed(self, hold: m.Hold) -> Effects:
        """Answer a call; asked again while it waits for something else, a member asks for that again, too."""
        is_again, self._hold = hold.number == self._hold, hold.number
        self._heeded = max(self._heeded, hold.number)
        is_waiting = self.phase not in (Phase.READY, Phase.DECIDING)
        return self._again() if is_again and is_waiting else self._tell_where()

    def _tell_where(self) -> Effects:
        """Tell the coordinator at which step this member is, if it has asked and the member trains."""
        if self._hold is None or self.phase not in (Phase.READY, Phase.LANDING, Phase.DECIDING):
            return []
        return [Send(COORDINATOR, m.Held(sender=self.address, number=self._hold, step=self.step))]

    def _on_meet(self, meet: m.Meet) -> Effects:
        if meet.number == self._hold:
            self._hold, self._free_until = None, meet.step
        return []

    def leave(self) -> Effects:
        """Ask to leave the job in good order; every report repeats it."""
        self._wants_out = True
        return [Send(COORDINATOR, m.Leave(sender=self.address))]

    @property
    def leads(self) -> bool:
        """Whether this member speaks for all of its kind: it saves the model, or its part of it."""
        return self.view.members[:1] == (self.address,)

    @property
    def finished(self) -> bool:
        """Whether this worker has seen the job's last round."""
        return self._finished

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        """Take in a message and return what to say to it."""
        life = m.life_of(message)
        if life is not None:
            if life < self._life:
                return []  # its coordinator has been succeeded
            self._life = life
        self._now_s = now_s
        match message:
            case m.Welcome():
                return self._on_welcome(message)
            case m.Recount():
                return self._recount(message)
            case m.CatchUp():
                return self._catch_up(message)
            case m.AskAgain():
                self._ticket = max(self._ticket, message.ticket)
                return self._again() if self.phase is Phase.JOINING else []
            case m.NewView():
                return self._on_view(message.view)
            case m.NeedInit():
                return [self._courier().init(message.block)] if self.phase is Phase.FETCHING else []
            case m.NeedPush():
                return self._on_need_push(message)
            case m.State():
                return self._on_state(message)
            case m.Decision():
                self.round.decided(message, self.step)
                return self._act() if self.phase is Phase.DECIDING else []
            case m.Update():
                return self._on_update(message)
            case m.Ack():
                return self._on_ack(message)
            case m.PartMean():
                self._on_mean(message)
                return self._landed()
            case m.Hold():
                return self._heed(message)
            case m.Meet():
                return self._on_meet(message)
            case m.SendNext():
                self.judging.judged(message)
                return []
            case m.CheckpointRequest():
                state = self.state_dict if self.phase is Phase.DECIDING and self.flight is None else None
                asked = self._contribution.asked(message, state)
                return asked + (self._again() if self.phase is Phase.PARTING else [])
            case m.PartKept():
                kept = self._contribution.kept(message)
                return kept + (self._again() if self.phase is Phase.PARTING else [])
            case m.SaveModel():
                return self._save_for_all() if self.phase is Phase.PARTING and self._finished else []
            case m.ModelKept():
                self._saved = True
                return self._again()
            case m.Goodbye():
                if self.phase is Phase.PARTING:
                    self._enter(Phase.GONE)
                return []
        raise ProtocolError(str(self.address), f"a {self.address.role.value} does not expect {type(message).__name__}")

    def retry(self, now_s: float = 0.0) -> Effects:
        """Return again whatever this member is waiting for an answer to; one that waits for a shard also asks whether
        that is still the one to ask.
        """
        asks_shards = self.phase in (Phase.FETCHING, Phase.ACKING, Phase.SYNCING, Phase.HANDING)
        asked = m.AskView(sender=self.address, view=self.view.number)
        again = self._again() + self._asks_of_flight()
        return again + ([Send(COORDINATOR, asked)] if asks_shards or self.flight is not None else [])

    def _again(self) -> Effects:
        """Return again whatever this worker is waiting for an answer to."""
        match self.phase:
            case Phase.JOINING:
                join = m.Join(
                    sender=self.address,
                    num_samples=self.replica.workload.num_samples,
                    num_elements=self.shared.num_elements,
                    step=self.step + 1 if self._computed else self.step,
                    ticket=self._ticket,
                    told=self._told,
                )
                return [Send(COORDINATOR, join)]
            case Phase.FETCHING if self._welcome is not None:
                return [*self._courier().fetches(self.round.waiting, self._welcome)]
            case Phase.READY | Phase.LANDING if self.free_run is not None:
                return self._tell_where() + self.free_run.again(self.view)
            case Phase.DECIDING:
                return [*self._tell_where(), *self._told_again()]
            case Phase.ACKING | Phase.SYNCING if self._owed is not None:
                return [*self._courier().questions(self.round.waiting, self._owed.round)]
            case Phase.SYNCING if self.round.decision is not None:
                return [*self._courier().pulls(self.round.waiting, self.round.decision)]
            case Phase.HANDING:
                return [*self._courier().handovers(self.round.waiting, self._share)]
            case Phase.PARTING if not self._contribution.is_being_written:
                finished, metrics, saved = self._finished, self._final_metrics, self._saved
                farewell = m.Farewell(sender=self.address, finished=finished, metrics=metrics, saved=saved)
                return [Send(COORDINATOR, farewell)]
        return []

    # Joining

    def _on_welcome(self, welcome: m.Welcome) -> Effects:
        if self.phase is not Phase.JOINING or welcome.view.number <= self.view.number:
            return []
        self._data_views.begin(welcome.view)
        self._adopt_knobs(welcome.knobs)
        self._welcome, self.step, self._computed, self._reports = welcome, welcome.step, False, []
        self._free_until, self._hold, self._catches_up = welcome.free_until, None, False
        if self.free_run is not None:
            self.free_run.parts.met()
        self._give_up_flight()
        self.round.forget()
        self._enter(Phase.FETCHING, range(len(self.shared.blocks)))
        return self._again()

    def _on_state(self, state: m.State) -> Effects:
        if self.flight is not None:
            is_its = state.view == self.view.number and self.flight.expects(state.block, state.round)
            return self._arrived(state) if is_its else []
        expected = self.phase in (Phase.FETCHING, Phase.SYNCING) and state.view == self.view.number
        if not expected or state.block not in self.round.waiting:
            return []
        decision = self.round.decision
        if decision is not None and self.phase is Phase.SYNCING and state.round < decision.round:
            return []
        self.shared.load(state)
        if self.free_run is not None:
            self.free_run.parts.loaded(state.block, state.part_rounds)
        if self.phase is Phase.SYNCING:
            return self._block_done(state.block)
        self.round.waiting.discard(state.block)
        if self.round.waiting or self._welcome is None:
            return []
        if self._catches_up:
            return self._caught_up()
        self.shared.adopt()
        self._showing_since(self.step)
        self.round.samples = 0
        if self._welcome.finished:
            self._finished = True
            return self._part()
        self._enter(Phase.READY)
        self._begins()
        return self._tell_where()

    def _catch_up(self, ahead: m.CatchUp) -> Effects:
        """Keep what this worker has to send for the next round, and go to where the others are."""
        if self.phase is not Phase.DECIDING or ahead.step <= self.step or self.address not in ahead.view.here:
            return []
        if ahead.view.number > self.view.number:
            self._data_views.add(ahead.view)
        self._adopt_knobs(ahead.knobs)
        self.shared.hold_back(self._exchange.payload)
        self.step, self._catches_up = ahead.step, True
        self._welcome = m.Welcome(
            view=ahead.view,
            knobs=ahead.knobs,
            step=ahead.step,
            round=ahead.round,
            participants=ahead.participants,
        )
        self._enter(Phase.FETCHING, self.round.replay(ahead.round, self._exchange.payload))
        return self._again() if self.round.waiting else self._caught_up()

    def _caught_up(self) -> Effects:
        """Report the late step as the present one: what it came to is sent with that one's round."""
        self.shared.adopt()
        self._catches_up, self._computed, self._is_skipped = False, True, True
        view = self._data_views.of(self.step)
        late = self._reports[-1]
        judged = self.judging.judge(self.step, view)
        changes = {"view": self.view.number, "step": self.step, "judged": judged, "wants_out": self._wants_out}
        self._reports = [msgspec.structs.replace(late, **changes)]
        self._enter(Phase.DECIDING)
        self._probe("worker.reported")
        return [*self._told_again(), *self._act(), *self.judging.hand_over(self.step, view)]

    def _on_view(self, view: View) -> Effects:
        if view.number <= self.view.number or self.phase in (Phase.NEW, Phase.JOINING, Phase.PARTING, Phase.GONE):
            return []
        is_succeeded = view.life > self.view.life
        self._data_views.add(view)
        if self.address not in view.here:
            if self.phase is Phase.HANDING:
                return self._part()  # taken for dead on its way out
            self._breaks_off()
            self._give_up_flight()
            self._enter(Phase.JOINING)
        effects = self._again() + self._asks_of_flight()
        if is_succeeded and self.phase is not Phase.DECIDING:
            effects += self._told_again()  # a new coordinator may lack what the last one was told
        return effects

    def _told_again(self) -> Effects:
        """Return the last reports again, under the present view."""
        number = self.view.number
        reports = [msgspec.structs.replace(report, view=number) for report in self._reports]
        return [Send(COORDINATOR, report) for report in reports]

    def _recount(self, asked: m.Recount) -> Effects:
        """Tell a new coordinator what this member knows."""
        account = m.Account(
            sender=self.address,
            life=asked.life,
            view=self.view,
            is_in=self.phase not in (Phase.NEW, Phase.JOINING, Phase.GONE) and self.address in self.view.here,
            is_synced=self.phase is Phase.SYNCING,
            ticket=self._ticket,
            step=self.step,
            first_step=0 if self._welcome is None else self._welcome.step,
            round=-1 if self._welcome is None else self._welcome.round,
            wants_out=self._wants_out,
            call=self._heeded,
            checkpoint=self._contribution.given,
            decisions=self.round.past(asked.after_step),
        )
        return [Send(COORDINATOR, account)]

    # A round

    def _act(self) -> Effects:
        decision = self.round.take_decision(self.step)
        if decision is None:
            return []
        self._adopt_knobs(decision.knobs)
        self._probe("worker.decided")
        if not self._is_skipped:
            self._exchange.decided(self.replica, self._lr(), decision.payload_kind if decision.sync else None)
        if self.flight is not None and (decision.sync or decision.lands):
            self._enter(Phase.LANDING)
            return []
        return self._begin_round(decision)

    def _begin_round(self, decision: m.Decision) -> Effects:
        """Do as was decided, with nothing on its way."""
        if not decision.sync:
            return self._finish_step()
        if self._lands_late and not decision.lands:
            return self._take_off(decision)
        self.trainer.round_begins()
        if self.free_run is not None:
            self.free_run.parts.met()
        self._enter(Phase.SYNCING, range(len(self.shared.blocks)))
        # A worker that contributes nothing is sent the result all the same; it asks only if that is lost.
        effects = self._again() if self.round.pushes_first else self._push_finite(decision)
        self._probe("worker.pushed")
        for update in self.round.early(decision.round):
            effects += self._on_update(update)
        return effects

    def _take_off(self, decision: m.Decision) -> Effects:
        """Push, and go on: the round lands when it has come."""
        owed, blocks = self.round.owed(self.step, is_acking=False), range(len(self.shared.blocks))
        self.flight = Flight(decision, owed, blocks, float(self.round.samples), self._lr())
        effects = self._push_off(self.flight, decision)
        self.round.samples = 0
        self._probe("worker.pushed")
        effects += self._finish_step()
        for update in self.round.early(decision.round):
            effects += self._on_update(update)
        return effects

    def _push_off(self, flight: Flight, decision: m.Decision) -> Effects:
        """Return all pushes; nothing of what the worker has come to if not all of it is finite."""
        self._drop_what_is_not_finite(decision)
        self.shared.take_off()
        return flight.push(self._courier(decision.view), self.round, range(len(self.shared.blocks)))

    def _arrived(self, result: m.Update | m.State) -> Effects:
        """A block's outcome of the round on its way has come; with the last one it lands, and whatever waited for that
        goes on.
        """
        flight, decision = self.flight, self.round.decision
        assert flight is not None
        flight.came(result)
        if flight.waiting:
            return []
        self._probe("worker.updating")
        self.trainer.round_begins()
        flight.land(self.round, self.shared)
        self.trainer.round_ends()
        self._exchange.landed(self.replica, self.shared, self.spec.inner_state == "reset")
        self.flight = None
        self._showing_since(flight.decision.step + 1)
        self._probe("worker.synced")
        return self._begin_round(decision) if self.phase is Phase.LANDING and decision is not None else []

    def _give_up_flight(self) -> None:
        """Whoever begins anew is sent what the round came to."""
        self.flight = None
        self.shared.give_up()

    def _asks_of_flight(self) -> Effects:
        return [] if self.flight is None else self.flight.questions(self._courier())

    @property
    def _last_landed(self) -> int:
        return max(self.shared.rounds, default=-1)

    def _on_update(self, update: m.Update) -> Effects:
        if self.flight is not None and self.flight.expects(update.block, update.round):
            return self._arrived(update)
        decision = self.round.decision
        if self.phase is not Phase.SYNCING or decision is None or update.round > decision.round:
            self.round.set_aside(update)
            return []
        return self._block_done(update.block) if self.round.take(update, decision) else []

    def _block_done(self, block: int) -> Effects:
        decision = self.round.decision
        assert decision is not None
        self.round.waiting.discard(block)
        self._probe("worker.updating")
        if self.round.waiting:
            return []
        self.round.over(decision.round)
        self.trainer.round_ends()
        resets = self.spec.inner_state == "reset"
        self._exchange.closed(self.replica, self.shared, self._lr(), decision.payload_kind, resets)
        self._showing_since(decision.step + 1)
        self._probe("worker.synced")
        return self._finish_step()

    def _finish_step(self) -> Effects:
        decision = self.round.decision
        assert decision is not None
        self.step, self._computed, self.round.decision = self.step + 1, False, None
        self._finished, self._free_until = decision.final, decision.free_until
        if self.address in decision.leavers:
            self._share = 1 / (decision.num_participants or len(self.view.members) + 1)
            self._enter(Phase.HANDING, {key[0] for key in self.shared.feedback.residuals()})
            return self._again() if self.round.waiting else self._part()
        if decision.final:
            return self._part()
        self._enter(Phase.READY)
        self._begins()
        return self._tell_where()

    @property
    def _owed(self) -> Owed | None:
        """What this worker owes pushes to, if anything."""
        if self.phase not in (Phase.ACKING, Phase.SYNCING):
            return None
        return self.round.owed(self.step, is_acking=self.phase is Phase.ACKING)

    def _push(self, blocks: Iterable[int]) -> Effects:
        """Return pushes under the view their round was decided in, though this worker may not have heard of it yet;
        what it asks later carries the view it knows, so that a shard tells it of a newer one.
        """
        decision = self.round.decision
        courier = self._courier(decision.view if decision is not None else 0)
        return self.round.push(courier, self._owed, blocks, self._lr())

    def _push_finite(self, decision: m.Decision) -> Effects:
        """Return all pushes; nothing of what the worker has come to if not all of it is finite."""
        if decision.payload_kind == "displacement":
            self._drop_what_is_not_finite(decision)
        return self._push(self.round.waiting)

    def _drop_what_is_not_finite(self, decision: m.Decision) -> None:
        """Look at it before the first block leaves: what has left is not taken back."""
        if (why := self.shared.not_finite()) is not None:
            self._untold += (self.trainer.drop_progress(self.step, decision.round, why),)

    def _on_need_push(self, message: m.NeedPush) -> Effects:
        """Send a push again that the shard has never seen, or has lost with its process."""
        if self.flight is not None and self.flight.owes(message):
            return self.flight.push(self._courier(self.flight.decision.view), self.round, [message.block])
        is_owed = self._owed is not None and message.round == self._owed.round and message.block in self.round.waiting
        return self._push([message.block]) if is_owed else []

    def _on_ack(self, ack: m.Ack) -> Effects:
        if self.phase not in (Phase.ACKING, Phase.HANDING) or ack.block not in self.round.waiting:
            return []
        if self.phase is Phase.ACKING:
            if ack.round != self.step:
                return []
            self.shared.feedback.commit((ack.block, self._exchange.payload), ack.round)
        if self.phase is Phase.HANDING:
            self.shared.feedback.forget(ack.block)
        self.round.waiting.discard(ack.block)
        if self.round.waiting:
            return []
        if self.phase is Phase.HANDING:
            return self._part()
        self._probe("worker.pushed")
        self._enter(Phase.DECIDING)
        self._probe("worker.reported")
        return self._again() + self._act()

    # Leaving

    def _part(self) -> Effects:
        self._enter(Phase.PARTING)
        if self.leads and self._finished:
            return self._save_for_all()
        if self.leads:
            self._final_metrics = self.judging.judge_all()
        return self._again()

    def _save_for_all(self) -> Effects:
        """Save the final model, once, before the farewell that says so leaves."""
        if self._saved:
            return self._again()
        self._final_metrics = self.judging.judge_all()
        self._probe("worker.saving")
        return [KeepModel()]

    # Small things

    def _courier(self, view: int = 0) -> Courier:
        return Courier(self.address, max(self.view.number, view), self.spec, self.shared, self.view.servers)

    def _lr(self) -> float:
        own = self.replica.own_lr
        return self.spec.lr_at(self.step) if own is None else own

    def _enter(self, phase: Phase, waiting: Iterable[int] = ()) -> None:
        self.phase, self.round.waiting = phase, set(waiting)

    def _adopt_knobs(self, knobs: Knobs) -> None:
        if knobs.version != self.knobs.version:
            self.knobs, self.spec = knobs, apply_knobs(self._submitted, knobs)

    def _step_metrics(self, computed: Computed) -> dict[str, float]:
        return {
            **self._progress_metrics(computed),
            **self._sent_metrics(),
            **self._measured(),
        }

    def _progress_metrics(self, computed: Computed) -> dict[str, float]:
        """Return what a step says of the training itself."""
        loss = math.nan if computed.loss is None else computed.loss
        return {"train/loss": loss, "train/samples": float(computed.samples)}

    def _sent_metrics(self) -> dict[str, float]:
        found = self.round.metrics()
        for name, value in (self.free_run.metrics() if self.free_run is not None else {}).items():
            found[name] = found.get(name, 0.0) + value
        return found

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return everything this worker is while it waits for a decision: the only moment at which checkpoints are
        taken.
        """
        if self.phase is not Phase.DECIDING:
            raise ProtocolError(str(self.address), f"its state cannot be saved in phase {self.phase.value}")
        return {
            "views": self._data_views.state_dict(),
            "knobs": msgspec.to_builtins(self.knobs),
            "step": self.step,
            "reports": msgspec.to_builtins(self._reports),
            "round": self.round.state_dict(),
            "trainer": self.trainer.state_dict(),
            "replica": self.replica.state_dict(),
            "shared": self.shared.state_dict(),
            "free_run": None if self.free_run is None else self.free_run.state_dict(),
            "is_skipped": self._is_skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, waiting for the decision about the step it had computed."""
        self._adopt_knobs(msgspec.convert(state["knobs"], Knobs))
        servers = tuple(shard(slot).at(self.address.stage) for slot in range(self.spec.scale.shards))
        self._data_views.load_state_dict(state["views"], servers)
        self.step = state["step"]
        self.round.load_state_dict(state["round"])
        self.trainer.load_state_dict(state["trainer"])
        self.replica.load_state_dict(state["replica"])
        self.shared.load_state_dict(state["shared"])
        if self.free_run is not None:
            self.free_run.load_state_dict(state["free_run"])
        self._is_skipped = state.get("is_skipped", False)
        self._reports, self._computed = msgspec.convert(state["reports"], list[m.Report], strict=False), True
        self._enter(Phase.DECIDING)
