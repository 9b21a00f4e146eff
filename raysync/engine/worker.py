"""The worker core: computes steps, obeys decisions, pushes and pulls blocks. It knows no network and no clock.

The host calls `compute` whenever the phase is READY, hands every arriving message to `handle`, delivers what both
return, and calls `retry` when nothing has come for a while: whatever was lost on the way is then said again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

from raysync.control.view import NO_VIEW, View
from raysync.data import Sampler
from raysync.engine import messages as m
from raysync.engine.courier import Courier
from raysync.engine.exchange import Exchange
from raysync.engine.ports import Keep, Measured, Probe, keep_nothing, no_probe, nothing_measured
from raysync.engine.replica import Replica
from raysync.engine.seeds import derive
from raysync.errors import ProtocolError
from raysync.knobs import Knobs, apply_knobs, initial_knobs
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind
from raysync.sync.signal import Meter, StepStats
from raysync.tasks.workload import Workload

T = TypeVar("T")


class Phase(StrEnum):
    """What a worker is waiting for."""

    NEW = "new"
    """to be started"""
    JOINING = "joining"
    """a welcome"""
    FETCHING = "fetching"
    """the state of every block"""
    READY = "ready"
    """the host, to compute a step"""
    ACKING = "acking"
    """asynchronous: acknowledgements of its pushes"""
    DECIDING = "deciding"
    """the decision about its step"""
    SYNCING = "syncing"
    """the updates of a round"""
    HANDING = "handing"
    """acknowledgements of the residuals it hands over"""
    PARTING = "parting"
    """the coordinator's word that its farewell was heard"""
    GONE = "gone"
    """nothing any more"""


class Worker:
    """One data-parallel worker."""

    def __init__(
        self,
        worker: int,
        spec: JobSpec,
        workload: Workload,
        *,
        device: str = "cpu",
        probe: Probe = no_probe,
        keep: Keep = keep_nothing,
        measured: Measured = nothing_measured,
        replica: Replica | None = None,
    ) -> None:
        self.id, self.address = worker, m.worker_address(worker)
        self._submitted, self.spec = spec, spec
        self._probe, self._keep, self._measured = probe, keep, measured
        self.replica = replica or Replica(spec, workload, device)
        self.exchange = Exchange(spec, self.replica)
        self._sampler = Sampler(
            spec.data, workload.num_samples, spec.seed, workload.labels() if spec.data.label_skew else None
        )
        self._signal = getattr(spec.strategy, "signal", None)
        self._meter: Meter = self._signal.meter() if self._signal else Meter()
        self._direction: Tensor | None = None
        self._last_visible: Tensor | None = None
        self.phase = Phase.NEW
        self.view = NO_VIEW
        self._views: list[View] = []
        """Views that deal out this step's data or that of later steps, oldest first."""
        self.knobs: Knobs = initial_knobs(spec)
        self.step = 0
        self._computed = False
        self._ticket = 0
        self._wants_out = False
        self._share = 1.0
        """This worker's weight in the mean, for what it hands over."""
        self._samples_since_sync = 0
        self._welcome: m.Welcome | None = None
        self._reports: list[m.Report] = []
        """The last two: where decisions run ahead, the earlier one may still be missed."""
        self._decision: m.Decision | None = None
        self._decisions: dict[int, m.Decision] = {}
        self._early: dict[tuple[int, int], m.Update] = {}
        self._waiting: set[int] = set()
        self._finished = False
        self._final_metrics: dict[str, float] = {}
        self.bytes_up, self.bytes_down = 0, 0
        self.dense_bytes = 0
        """What the same updates would have weighed uncompressed."""

    # What the host calls

    def start(self) -> list[m.Send]:
        """Ask to join the job."""
        self.phase = Phase.JOINING
        return self.retry()

    def compute(self) -> list[m.Send]:
        """Compute one step on this worker's next batch and report it."""
        if self.phase is not Phase.READY:
            raise ProtocolError(self.address, f"compute() in phase {self.phase.value}")
        indices = self._sampler.batch(self._data_view(), self.id, self.step)
        loss = self.replica.compute(indices, derive(self.spec.seed, "step", self.id, self.step))
        self._computed = True
        self._samples_since_sync += len(indices)
        self._probe("worker.computed")
        stats = StepStats(
            self.replica.grad_sq(),
            self.replica.tensor_norms() if self._signal and self._signal.needs_tensor_norms else 0.0,
        )
        if self.spec.strategy.payload == "delta":
            self.replica.step(self._lr())
        values = self._meter.observe(self._with_drift(stats), len(self.view.members))
        metrics = self._step_metrics(loss, len(indices))
        report = m.Report(
            view=self.view.number,
            worker=self.id,
            step=self.step,
            values=values,
            metrics=metrics,
            wants_out=self._wants_out,
        )
        self._reports = [*self._reports[-1:], report]
        if self.spec.strategy.asynchronous:
            self._enter(Phase.ACKING, range(len(self.exchange.blocks)))
            return self.retry()
        self._enter(Phase.DECIDING)
        sends = [m.Send(m.COORDINATOR, report)]
        self._probe("worker.reported")
        return sends + self._act()

    def leave(self) -> list[m.Send]:
        """Ask to leave the job in good order; every report repeats it."""
        self._wants_out = True
        return [m.Send(m.COORDINATOR, m.Leave(worker=self.id))]

    def evaluate(self) -> dict[str, float]:
        """Return the evaluation metrics of the model all workers see (of this replica, where they share only
        gradients).
        """
        return self.replica.evaluate(self._shown(), self.exchange.visible_extras)

    def show_model(self, look: Callable[[dict[str, Any]], T]) -> T:
        """Let `look` see the state_dict of the model that `evaluate` judges, and return what it returns."""
        return self.replica.show_model(self._shown(), self.exchange.visible_extras, look)

    @property
    def leads(self) -> bool:
        """Whether this worker evaluates and saves the model for all."""
        return self.view.members[:1] == (self.id,)

    @property
    def finished(self) -> bool:
        """Whether this worker has seen the job's last round."""
        return self._finished

    def handle(self, message: m.Message) -> list[m.Send]:
        """Take in a message and return what to say to it."""
        match message:
            case m.Welcome():
                return self._on_welcome(message)
            case m.AskAgain():
                self._ticket = max(self._ticket, message.ticket)
                return self.retry() if self.phase is Phase.JOINING else []
            case m.NewView():
                return self._on_view(message.view)
            case m.NeedInit():
                return self._on_need_init(message)
            case m.State():
                return self._on_state(message)
            case m.Decision():
                if message.step >= self.step:
                    self._decisions[message.step] = message
                return self._act() if self.phase is Phase.DECIDING else []
            case m.Update():
                return self._on_update(message)
            case m.Ack():
                return self._on_ack(message)
            case m.SnapshotRequest():
                return self._on_snapshot(message.snapshot)
            case m.Goodbye():
                if self.phase is Phase.PARTING:
                    self._enter(Phase.GONE)
                return []
        raise ProtocolError(self.address, f"a worker does not expect {type(message).__name__}")

    def retry(self) -> list[m.Send]:
        """Return again whatever this worker is waiting for an answer to."""
        match self.phase:
            case Phase.JOINING:
                step = self.step + 1 if self._computed else self.step
                join = m.Join(
                    worker=self.id,
                    num_samples=self.replica.workload.num_samples,
                    num_elements=self.exchange.num_elements,
                    step=step,
                    ticket=self._ticket,
                )
                return [m.Send(m.COORDINATOR, join)]
            case Phase.FETCHING if self._welcome is not None:
                return self._courier().fetches(self._waiting, self._welcome)
            case Phase.DECIDING:
                return [
                    m.Send(m.COORDINATOR, msgspec.structs.replace(report, view=self.view.number))
                    for report in self._reports
                ]
            case Phase.ACKING:
                return self._push(self.step, (), "gradient")
            case Phase.SYNCING if self._decision is not None:
                if self.id in self._decision.participants and not self.spec.strategy.asynchronous:
                    return self._push(self._decision.round, self._decision.participants, self._decision.payload_kind)
                return self._courier().pulls(self._waiting, self._decision)
            case Phase.HANDING:
                return self._courier().handovers(self._waiting, self._share)
            case Phase.PARTING:
                finished, metrics = self._finished, self._final_metrics
                return [m.Send(m.COORDINATOR, m.Farewell(worker=self.id, finished=finished, metrics=metrics))]
        return []

    # Joining

    def _on_welcome(self, welcome: m.Welcome) -> list[m.Send]:
        if self.phase is not Phase.JOINING or welcome.view.number <= self.view.number:
            return []
        self._adopt_view(welcome.view)
        self._adopt_knobs(welcome.knobs)
        self._welcome, self.step, self._computed = welcome, welcome.step, False
        self._decisions, self._reports, self._decision, self._views = {}, [], None, [welcome.view]
        self._enter(Phase.FETCHING, range(len(self.exchange.blocks)))
        return self.retry()

    def _on_need_init(self, message: m.NeedInit) -> list[m.Send]:
        if self.phase is not Phase.FETCHING:
            return []
        return [self._courier().init(message.block)]

    def _on_state(self, state: m.State) -> list[m.Send]:
        expected = self.phase in (Phase.FETCHING, Phase.SYNCING) and state.view == self.view.number
        if not expected or state.block not in self._waiting:
            return []
        if self._decision is not None and self.phase is Phase.SYNCING and state.round < self._decision.round:
            return []
        self.exchange.load(state)
        if self.phase is Phase.SYNCING:
            return self._block_done(state.block)
        self._waiting.discard(state.block)
        if self._waiting or self._welcome is None:
            return []
        self.exchange.adopt()
        self._samples_since_sync = 0
        if self._welcome.finished:
            self._finished = True
            return self._part()
        self._enter(Phase.READY)
        return []

    def _on_view(self, view: View) -> list[m.Send]:
        if view.number <= self.view.number or self.phase in (Phase.NEW, Phase.JOINING, Phase.PARTING, Phase.GONE):
            return []
        self._adopt_view(view)
        if self.id not in view.everyone:
            if self.phase is Phase.HANDING:
                return self._part()  # taken for dead on its way out
            self._enter(Phase.JOINING)
        return self.retry()

    # Acting on a decision

    def _act(self) -> list[m.Send]:
        decision = self._decisions.get(self.step)
        if decision is None:
            return []
        self._decision = decision
        self._decisions = {step: later for step, later in self._decisions.items() if step > self.step}
        self._adopt_knobs(decision.knobs)
        self._probe("worker.decided")
        steps_now = self.spec.strategy.relays and not (decision.sync and decision.payload_kind == "gradient")
        if steps_now:
            self.replica.step(self._lr())
        if not decision.sync:
            return self._finish_step()
        if self._signal is not None and self._signal.needs_drift:
            self._last_visible = self.exchange.visible.clone()
        self._enter(Phase.SYNCING, range(len(self.exchange.blocks)))
        # Who contributes nothing is sent the result all the same; it asks only if that is lost.
        sends = self.retry() if self.id in decision.participants or self.spec.strategy.asynchronous else []
        self._probe("worker.pushed")
        for key in sorted(key for key in self._early if key[0] == decision.round):
            sends += self._on_update(self._early.pop(key))
        return sends

    def _on_update(self, update: m.Update) -> list[m.Send]:
        decision = self._decision
        if self.phase is not Phase.SYNCING or decision is None or update.round > decision.round:
            self._early[update.round, update.block] = update
            return []
        if update.round != decision.round or update.block not in self._waiting:
            return []
        if update.round > self.exchange.rounds[update.block]:
            self.exchange.apply(update, decision.payload_kind)
            self.bytes_down += update.payload_bytes
            self.dense_bytes += 4 * self.exchange.blocks[update.block].size
        return self._block_done(update.block)

    def _block_done(self, block: int) -> list[m.Send]:
        decision = self._decision
        assert decision is not None
        self._waiting.discard(block)
        self._probe("worker.updating")
        if self._waiting:
            return []
        self._finish_round(decision)
        self._probe("worker.synced")
        return self._finish_step()

    def _finish_round(self, decision: m.Decision) -> None:
        self._early = {key: update for key, update in self._early.items() if key[0] > decision.round}
        self._samples_since_sync = 0
        if decision.payload_kind == "gradient" and self.spec.strategy.relays:
            self.replica.step(self._lr())
            return
        if self._last_visible is not None:
            moved = self.exchange.visible - self._last_visible
            self._direction = moved / moved.norm() if float(moved.norm()) > 0 else self._direction
            self._last_visible = None
        self.exchange.adopt()
        if self.spec.inner_state == "reset" and self.spec.strategy.payload == "delta":
            self.replica.reset_optimizer()

    def _finish_step(self) -> list[m.Send]:
        decision = self._decision
        assert decision is not None
        self.step, self._computed, self._decision = self.step + 1, False, None
        self._finished = decision.final
        if self.id in decision.leavers:
            self._share = 1 / (len(decision.participants) or len(self.view.members) + 1)
            return self._hand_over()
        if decision.final:
            return self._part()
        self._enter(Phase.READY)
        return []

    # Leaving

    def _hand_over(self) -> list[m.Send]:
        self._enter(Phase.HANDING, {key[0] for key in self.exchange.feedback.residuals()})
        return self.retry() if self._waiting else self._part()

    def _on_ack(self, ack: m.Ack) -> list[m.Send]:
        if self.phase not in (Phase.ACKING, Phase.HANDING) or ack.block not in self._waiting:
            return []
        if self.phase is Phase.ACKING:
            if ack.round != self.step:
                return []
            self.exchange.feedback.commit((ack.block, "gradient"), ack.round)
        if self.phase is Phase.HANDING:
            self.exchange.feedback.forget(ack.block)
        self._waiting.discard(ack.block)
        if self._waiting:
            return []
        if self.phase is Phase.HANDING:
            return self._part()
        self._probe("worker.pushed")
        self._enter(Phase.DECIDING)
        sends = self.retry()
        self._probe("worker.reported")
        return sends + self._act()

    def _part(self) -> list[m.Send]:
        if self.leads:
            self._final_metrics = self.evaluate()
        self._enter(Phase.PARTING)
        return self.retry()

    # Small things

    def _courier(self) -> Courier:
        return Courier(self.id, self.view.number, self.spec, self.exchange)

    def _push(self, round: int, participants: tuple[int, ...], kind: PayloadKind) -> list[m.Send]:
        sends = self._courier().pushes(
            self._waiting, round, participants, kind, float(self._samples_since_sync), self._lr()
        )
        self.bytes_up += sum(send.message.payload_bytes for send in sends)
        self.dense_bytes += sum(4 * self.exchange.blocks[block].size for block in self._waiting)
        return sends

    def _on_snapshot(self, snapshot: int) -> list[m.Send]:
        if self.phase is not Phase.DECIDING:
            return []
        self._keep(snapshot, self.address, self.state_dict())
        return [m.Send(m.COORDINATOR, m.SnapshotPart(snapshot=snapshot, sender=self.address))]

    def _lr(self) -> float:
        own = self.replica.own_lr
        return self.spec.lr_at(self.step) if own is None else own

    def _shown(self) -> Tensor:
        return self.replica.flat if self.spec.strategy.relays else self.exchange.visible

    def _enter(self, phase: Phase, waiting: Iterable[int] = ()) -> None:
        self.phase, self._waiting = phase, set(waiting)

    def _adopt_view(self, view: View) -> None:
        self.view = view
        self._views.append(view)

    def _adopt_knobs(self, knobs: Knobs) -> None:
        if knobs.version != self.knobs.version:
            self.knobs, self.spec = knobs, apply_knobs(self._submitted, knobs)

    def _data_view(self) -> View:
        """The newest view that deals out this step's data; older ones are of no more use."""
        ours = [
            index for index, view in enumerate(self._views) if view.start_step <= self.step and self.id in view.members
        ]
        self._views = self._views[ours[-1] :]
        return self._views[0]

    def _with_drift(self, stats: StepStats) -> StepStats:
        if self._signal is None or not self._signal.needs_drift:
            return stats
        drift = self.replica.flat - self.exchange.visible
        if self._direction is None:
            noise = torch.randn(
                len(drift), generator=torch.Generator().manual_seed(derive(self.spec.seed, "direction"))
            )
            self._direction = noise / noise.norm()
        return StepStats(
            stats.grad_sq, stats.tensor_norms, float(torch.dot(drift, drift)), float(torch.dot(drift, self._direction))
        )

    def _step_metrics(self, loss: float, samples: int) -> dict[str, float]:
        metrics = {
            "train/loss": loss,
            "train/samples": float(samples),
            "comm/bytes_up": float(self.bytes_up),
            "comm/bytes_down": float(self.bytes_down),
            "comm/dense_bytes": float(self.dense_bytes),
            "feedback/residual_norm": self.exchange.feedback.norm(),
            **self._measured(),
        }
        if self.step % self.spec.eval_every == 0 and self.leads:
            metrics |= self.evaluate()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return everything this worker is while it waits for a decision: the only moment at which checkpoints are
        taken.
        """
        if self.phase is not Phase.DECIDING:
            raise ProtocolError(self.address, f"its state cannot be saved in phase {self.phase.value}")
        return {
            "worker": self.id,
            "views": msgspec.to_builtins(self._views),
            "knobs": msgspec.to_builtins(self.knobs),
            "step": self.step,
            "reports": msgspec.to_builtins(self._reports),
            "samples_since_sync": self._samples_since_sync,
            "bytes": [self.bytes_up, self.bytes_down, self.dense_bytes],
            "meter": self._meter.state_dict(),
            "direction": None if self._direction is None else self._direction.clone(),
            "replica": self.replica.state_dict(),
            "exchange": self.exchange.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, waiting for the decision about the step it had computed."""
        self._adopt_knobs(msgspec.convert(state["knobs"], Knobs))
        self._views = msgspec.convert(state["views"], list[View])
        self.view = self._views[-1]
        self.step, self._samples_since_sync = state["step"], state["samples_since_sync"]
        self.bytes_up, self.bytes_down, self.dense_bytes = state["bytes"]
        self._meter.load_state_dict(state["meter"])
        self._direction = state["direction"]
        self.replica.load_state_dict(state["replica"])
        self.exchange.load_state_dict(state["exchange"])
        self._reports, self._computed = msgspec.convert(state["reports"], list[m.Report]), True
        self._enter(Phase.DECIDING)
