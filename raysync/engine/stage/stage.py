"""The stage core: carries out its plan, one pass at a time, on what its neighbours send; a member of the job like any
worker, whose pipeline stands for one.

Activations go straight from stage to stage. A stage that waits for one asks for it again when nothing has come for a
while; what is asked for is still there, since it is kept until the step it belongs to is over on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from raysync.address import COORDINATOR, Address
from raysync.compress import verbatim
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, KeepModel, Send
from raysync.engine.member import Member, Phase
from raysync.engine.ports import Measured, Probe, no_probe, nothing_measured
from raysync.engine.seeds import derive
from raysync.engine.stage.cutting import cut_model
from raysync.engine.stage.line import Line, Todo
from raysync.engine.stage.memory import StageMemory, stage_memory
from raysync.engine.stage.parcels import Key, Parcels, Part
from raysync.engine.stage.passes import Passes
from raysync.engine.stage.showing import Showing, Whole
from raysync.engine.stage.stash import Stash
from raysync.engine.training.replica import Replica
from raysync.engine.training.trainer import Computed
from raysync.errors import ProtocolError
from raysync.pipeline import Schedule
from raysync.pipeline.base import Kind
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload

T = TypeVar("T")


class Stage(Member):
    """One stage of one pipeline."""

    def __init__(
        self,
        address: Address,
        spec: JobSpec,
        workload: Workload,
        *,
        device: str = "cpu",
        probe: Probe = no_probe,
        measured: Measured = nothing_measured,
    ) -> None:
        cut = cut_model(workload, spec.scale.stages, spec.seed, device)
        replica = Replica(spec, workload, device, module=cut.modules[address.stage])
        replica.optimizer = spec.optimizer.at_stage(address.stage, spec.scale.stages)
        super().__init__(address, spec, replica, workload, probe, measured)
        self._workload, self._device = workload, device
        schedule = spec.schedule
        assert schedule is not None
        self.schedule: Schedule = schedule
        self._last = spec.scale.stages - 1
        self._line = Line(schedule, address.stage, spec.scale.stages)
        self.parcels = Parcels(address, spec.seed, schedule.activations, schedule.gradients)
        is_first, is_last = address.stage == 0, address.stage == self._last
        self.passes = Passes(replica, workload, device, is_first=is_first, is_last=is_last)
        self.passes.repeats = schedule.repeats_forward and not is_last
        if schedule.keeps_weights:
            self.passes.stash = Stash(replica, schedule.delay(address.stage, spec.scale.stages) + 1)
        self._showing = Showing(address, spec, self.trainer, self.shared)
        self._parts: dict[int, tuple[Part, ...]] = {}
        """By step: its microbatches, on the first stage."""
        self._part_of: dict[int, Part] = {}
        """By step: the last of its microbatches that went forward."""
        self._losses: dict[int, float] = {}
        """By step: the loss so far, on the last stage."""
        self._squares: dict[int, dict[int, float]] = {}
        """By step and stage: the squared norm of its gradient, where the whole model's is bounded."""
        self._own_squares: dict[int, float] = {}
        self._means: list[m.PartMean] = []
        """Those that came in the middle of a step."""
        self._models: dict[int, bytes] = {}
        """By stage: its final parameters, on the first stage of the pipeline that saves the model."""
        self._saves = False
        self.dropped = 0
        """Microbatches that were in flight when their pipeline broke, or the job ended."""
        self._told = f"cut into {spec.scale.stages} stages: {cut.told}"

    @property
    def memory(self) -> StageMemory:
        """What it holds at most."""
        return stage_memory(self.spec, self.address.stage, len(self.replica.flat), self.passes.microbatch_bytes)

    # What the host calls

    @property
    def judging(self) -> Showing:
        """Its share in evaluations."""
        return self._showing

    def is_ready(self, now_s: float = 0.0) -> bool:
        """Return whether it is to join, or can do what is next in its plan."""
        if self.phase is Phase.NEW:
            return True
        return self.phase is Phase.READY and self._hold is None and self._can(self._todo())

    def compute(self) -> Effects:
        """Do what is next in the plan."""
        todo = self._todo()
        if self.phase is not Phase.READY or todo is None or not self._can(todo):
            raise ProtocolError(str(self.address), f"compute() in phase {self.phase.value} with nothing to do")
        self._line.done()
        match todo.kind:
            case Kind.FORWARD:
                return self._forward(todo)
            case Kind.BACKWARD:
                return self._backward(todo)
            case Kind.STEP:
                return self._step(todo)

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        """Take in a message and return what to say to it."""
        match message:
            case m.Activation():
                if message.life == self._ticket:
                    self.parcels.arrived(message, self.step)
                return []
            case m.SendAgain():
                found = self.parcels.again(message) if message.life == self._ticket else None
                return [] if found is None else [Send(message.sender, found)]
            case m.GradNorm():
                return self._on_norm(message) if message.life == self._ticket else []
            case m.AskAgain() if message.ticket > self._ticket:
                self.parcels.forget()  # what came after the pipeline had broken, and was sent before
            case m.StageModel():
                self._models[message.sender.stage] = message.payload
                return self._save_if_whole()
        return super().handle(message, now_s)

    def _again(self) -> Effects:
        """Return again whatever this stage is waiting for an answer to."""
        if self.phase is Phase.READY:
            reports = [Send(COORDINATOR, report) for report in self._reports_now()]
            return [*self._questions(), *reports, *super()._again()]
        if self.phase is Phase.PARTING and self._saves and self.address.stage > 0 and not self._saved:
            return [self._own_model(), *super()._again()]
        return super()._again()

    def show_model(self, look: Callable[[dict[str, Any]], T]) -> T:
        """Let `look` see the state_dict of the whole model, if the final one is here; else of this stage's part."""
        if len(self._models) == self._last:
            return look(self._whole().state_dict())
        return self.trainer.show_model(look)

    # The plan

    @property
    def todo(self) -> Todo | None:
        """What is next, where that is known."""
        return self._todo()

    def _todo(self) -> Todo | None:
        """Return what is next, once a plan can be made."""
        if not self._line.has_plan and self.phase is Phase.READY:
            self._plan()
        return self._line.todo

    def _plan(self) -> None:
        if self.schedule.is_asynchronous:
            self._line.begin(self.step, self.spec.budget.steps - self.step)
        elif self.address.stage == 0:
            self._line.begin(self.step, len(self._dealt(self.step)))
        elif (first := self.parcels.peek(Key(self.step, 0, False))) is not None:
            self._line.begin(self.step, first.count)
        else:
            return
        self.replica.grad.zero_()

    def _can(self, todo: Todo | None) -> bool:
        if todo is None:
            return False
        stage, key = self.address.stage, (todo.step, todo.microbatch)
        match todo.kind:
            case Kind.FORWARD:
                return stage == 0 or self.parcels.has(Key(*key, False))
            case Kind.BACKWARD:
                return stage == self._last or self.parcels.has(Key(*key, True))
        if not self._bounds_all:
            return True
        return len(self._squares.get(todo.step, {})) >= self._last + (stage in self._squares.get(todo.step, {}))

    def _dealt(self, step: int) -> tuple[Part, ...]:
        """Return a step's microbatches; the first stage deals them out."""
        if step not in self._parts:
            indices = self.trainer.batch(self._data_views.dealing(step), step)
            found = np.array_split(indices, min(self.schedule.microbatches, len(indices)))
            self._parts[step] = tuple(Part(tuple(map(int, part)), len(found), len(indices)) for part in found)
        return self._parts[step]

    def _forward(self, todo: Todo) -> Effects:
        step, number = todo.step, todo.microbatch
        if self.address.stage == 0:
            given, part = None, self._dealt(step)[number]
        else:
            message = self.parcels.peek(Key(step, number, False))
            assert message is not None
            given, part = self.parcels.take(Key(step, number, False), self._device), Part.of(message)
        self._part_of[step] = part
        seed = derive(self.spec.seed, "stage", self.address.stage, self.address.index, step, number)
        share = len(part.samples) / part.total
        common_seed = derive(self.spec.seed, "microbatch", self.address.index, step, number)
        made = self.passes.forward((step, number), part.samples, given, seed, share, common_seed)
        self._probe("stage.forward")
        if self.address.stage == self._last:
            self._losses[step] = self._losses.get(step, 0.0) + float(made) * share
            return []
        parcel = self.parcels.pack(Key(step, number, False), self._ticket, made, part)
        return [Send(self._neighbour(1), parcel)]

    def _backward(self, todo: Todo) -> Effects:
        step, number = todo.step, todo.microbatch
        is_last = self.address.stage == self._last
        gradient = None if is_last else self.parcels.take(Key(step, number, True), self._device)
        back = self.passes.backward((step, number), gradient)
        self._probe("stage.backward")
        effects: Effects = []
        if back is not None:
            parcel = self.parcels.pack(Key(step, number, True), self._ticket, back)
            effects.append(Send(self._neighbour(-1), parcel))
        if self._bounds_all and number == self._part_of[step].num_parts - 1:
            effects += self._norms(step)
        return effects

    def _step(self, todo: Todo) -> Effects:
        spoilt = self._clip(todo.step)
        self.passes.begin_step()
        loss, samples = self._losses.pop(todo.step, None), self._part_of.pop(todo.step).total
        view, lr = self._data_views.of(self.step), self._lr()
        computed = self.trainer.finish(self.step, lr, len(self.view.members), loss, samples, spoilt)
        if self.schedule.is_asynchronous:
            self.replica.grad.zero_()
        self._parts.pop(todo.step, None)
        self._squares.pop(todo.step, None)
        return self._computed_step(computed, view)

    def _neighbour(self, distance: int) -> Address:
        return self.address.at(self.address.stage + distance)

    # Clipping

    @property
    def _bounds_all(self) -> bool:
        return self.schedule.clip_norm is not None and not self.schedule.is_asynchronous

    def _norms(self, step: int, asks: bool = False) -> Effects:
        """Tell all other stages how long this one's gradient is, and ask for theirs."""
        square = self.replica.grad_sq()
        self._squares.setdefault(step, {})[self.address.stage] = square
        self._own_squares = {step: square, **{old: found for old, found in self._own_squares.items() if old > step - 4}}
        others = [self.address.at(stage) for stage in range(self._last + 1) if stage != self.address.stage]
        told = m.GradNorm(sender=self.address, life=self._ticket, step=step, square=square, asks=asks)
        return [Send(other, told) for other in others]

    def _on_norm(self, told: m.GradNorm) -> Effects:
        """Keep another stage's norm; one that still waits at a step that is over here has missed this stage's."""
        if told.step > self.step or (told.step == self.step and not self._computed):
            self._squares.setdefault(told.step, {})[told.sender.stage] = told.square
        own = self._own_squares.get(told.step)
        if own is None or not told.asks:
            return []
        return [Send(told.sender, m.GradNorm(sender=self.address, life=self._ticket, step=told.step, square=own))]

    def _clip(self, step: int) -> str:
        """Bound the gradient; return why the step must be skipped though this stage's part may be finite, if so."""
        limit = self.schedule.clip_norm
        if limit is None:
            return ""
        squares: Mapping[int, float] = self._squares.get(step, {}) if self._bounds_all else {0: self.replica.grad_sq()}
        norm = math.sqrt(math.fsum(squares[stage] for stage in sorted(squares)))
        if norm > limit and math.isfinite(norm):
            self.replica.grad.mul_(limit / (norm + 1e-6))
        return "" if math.isfinite(norm) else "the gradient of the whole pipeline has no finite norm"

    # What is asked for again

    def _questions(self) -> Effects:
        todo = self._todo()
        if todo is None and self.address.stage > 0 and not self.schedule.is_asynchronous:
            todo = Todo(Kind.FORWARD, self.step, 0)
        if todo is None or self._can(todo):
            return []
        if todo.kind is Kind.STEP:
            return self._norms(todo.step, asks=True)
        is_gradient = todo.kind is Kind.BACKWARD
        asked = m.SendAgain(
            sender=self.address,
            life=self._ticket,
            step=todo.step,
            microbatch=todo.microbatch,
            is_gradient=is_gradient,
        )
        return [Send(self._neighbour(1 if is_gradient else -1), asked)]

    def _reports_now(self) -> list[m.Report]:
        """Return the last report under the present view: the coordinator's answer tells a stage whose pipeline was
        broken that it is not in any more.
        """
        return [msgspec.structs.replace(report, view=self.view.number) for report in self._reports[-1:]]

    # Beginning and breaking off

    def _on_view(self, view: View) -> Effects:
        """A pipeline that loses a stage after the last step, before its model is saved, joins again as a whole."""
        if self.phase is Phase.PARTING and view.number > self.view.number and self.address not in view.here:
            self._models, self._saves = {}, False
            self._data_views.add(view)
            self._enter(Phase.JOINING)
            return self._again()
        return super()._on_view(view)

    def _on_mean(self, mean: m.PartMean) -> None:
        """Let a mean land between two steps: until then passes in flight use the weights as they are."""
        if self.phase is Phase.READY:
            self._means.append(mean)
        else:
            super()._on_mean(mean)

    def _land_waiting(self) -> None:
        means, self._means = self._means, []
        for mean in means:
            super()._on_mean(mean)

    def _landed(self) -> Effects:
        if self.phase is Phase.LANDING:
            self._land_waiting()
        return super()._landed()

    def _begins(self) -> None:
        self._land_waiting()
        distance = 1 + self.schedule.delay(0, self._last + 1)
        self.parcels.over(self.step - distance)
        if not self.schedule.is_asynchronous:
            self._line.forget()

    def _breaks_off(self) -> None:
        self.dropped += len(self.passes.live)
        self._line.forget()
        self.parcels.forget()
        self.passes.forget()
        self._parts, self._part_of, self._losses, self._squares, self._means = {}, {}, {}, {}, []

    # The final model

    def _part(self) -> Effects:
        self.dropped += len(self.passes.live)
        self.passes.forget()
        self._enter(Phase.PARTING)
        if self.leads and self._finished:
            return self._save_for_all()
        return self._again()

    def _save_for_all(self) -> Effects:
        """The first stage saves the whole model once it has the others' parts, which they send it."""
        is_first_time, self._saves = not self._saves, True
        said = self._again() if is_first_time or self._saved else []  # else it is on its way
        return said if self.address.stage > 0 else [*said, *self._save_if_whole()]

    def _save_if_whole(self) -> Effects:
        is_whole = len(self._models) == self._last
        if not self._saves or self._saved or self.phase is not Phase.PARTING or not is_whole or self._final_metrics:
            return []
        self._final_metrics = {**self._whole().evaluate(), "eval/round": float(self._showing.round)}
        self._probe("worker.saving")
        return [KeepModel()]

    def _own_model(self) -> Send:
        payload = verbatim.encode(self.trainer.shown())
        return Send(self.address.at(0), m.StageModel(sender=self.address, payload=payload))

    def _whole(self) -> Whole:
        own = verbatim.encode(self.trainer.shown())
        whole = Whole(self.spec, self._workload)
        whole.load([{0: own, **self._models}[stage] for stage in range(self._last + 1)])
        return whole

    # Metrics and state

    def _lr(self) -> float:
        return super()._lr() * self.schedule.lr_factor(self.address.stage, self._last + 1, self.step)

    def _progress_metrics(self, computed: Computed) -> dict[str, float]:
        told = {
            "pipeline/activation_bytes": float(self.parcels.bytes_sent),
            "pipeline/delay": float(self.passes.delays[-1] if self.passes.delays else 0),
            "pipeline/dropped": float(self.dropped),
            "pipeline/memory_bytes": float(self.memory.total),
            "pipeline/stash_bytes": float(self.passes.stash.bytes if self.passes.stash else 0),
        }
        return {**super()._progress_metrics(computed), **told} if computed.loss is not None else told

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; what was in flight then is computed anew."""
        super().load_state_dict(state)
        self._breaks_off()
