"""Pipelines as single members: what all stages of one have said becomes one message, and what is said to it goes to
all its stages, in each one's own terms.

The coordinator names a pipeline by its first stage, and a slot of the parameter server by its shard for that stage.
With one stage everything passes as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from raysync.address import Address, Role
from raysync.control.view import View, at_stage
from raysync.engine import messages as m
from raysync.engine.coordinator.combining import merged
from raysync.engine.effects import Effect, Effects, Send
from raysync.metrics import METRICS

M = TypeVar("M", bound=m.Message)

_IN_STAGES = (Role.STAGE, Role.SHARD)


class Pipelines:
    """Gathers and spreads; holds only what has not come from all stages yet, or may be asked for again."""

    def __init__(self, stages: int, lead: int) -> None:
        self._stages, self._lead = stages, lead
        self._heard: dict[tuple[Address, type[m.Message]], dict[int, m.Message]] = {}
        """By first stage and kind: the last message of each stage."""
        self._reports: dict[Address, dict[int, dict[int, m.Report]]] = {}
        """By first stage and step: the report of each stage."""

    # In

    def gather(self, message: m.Message) -> m.Message | None:
        """Return what the coordinator is to hear now: the message itself, what it and those of the other stages come
        to, or nothing as long as one is missing.
        """
        if self._stages == 1:
            return message
        match message:
            case m.Join():
                return self._once_all(message, _join)
            case m.Report():
                return self._report(message)
            case m.Farewell():
                return self._once_all(message, _farewell)
            case m.Held():
                return self._once_all(message, _held)
            case m.ViewSeen():
                return self._once_all(message, _view_seen)
            case m.Covered():
                return self._once_all(message, _covered)
            case m.StandBy():
                return m.StandBy(who=message.who.at(0))
            case m.CheckpointCut():
                return self._once_all(message, _checkpoint_cut)
            case m.CheckpointPart():
                return self._once_all(message, _checkpoint_part)
            case m.Leave():
                return m.Leave(sender=message.sender.at(0))
            case m.Died():
                self.forget(message.who.at(0))
                return m.Died(who=message.who.at(0))
        return message

    def forget(self, pipeline: Address) -> None:
        """What a pipeline has said does not count any more."""
        self._heard = {key: found for key, found in self._heard.items() if key[0] != pipeline}
        self._reports.pop(pipeline, None)

    def _once_all(self, message: M, merge: Callable[[Sequence[M]], M | None]) -> M | None:
        sender: Address = message.sender  # type: ignore[attr-defined]
        found = self._heard.setdefault((sender.at(0), type(message)), {})
        found[sender.stage] = message
        if len(found) < self._stages:
            return None
        return merge([found[stage] for stage in range(self._stages)])  # type: ignore[misc]

    def _report(self, report: m.Report) -> m.Report | None:
        steps = self._reports.setdefault(report.sender.at(0), {})
        found = steps.setdefault(report.step, {})
        found[report.sender.stage] = report
        for old in [step for step in steps if step < report.step - 2 * self._lead - 4]:
            del steps[old]
        if len(found) < self._stages:
            return None
        return _report([found[stage] for stage in range(self._stages)])

    # Out

    def spread(self, effects: Effects) -> Effects:
        """Return the same effects with every message to a pipeline or a shard going to those of all stages."""
        if self._stages == 1:
            return effects
        return [one for effect in effects for one in self._spread(effect)]

    def _spread(self, effect: Effect) -> Effects:
        if not isinstance(effect, Send) or effect.to.role not in _IN_STAGES:
            return [effect]
        return [Send(effect.to.at(stage), told(effect.message, stage)) for stage in range(self._stages)]

    def astray(self, message: m.Message, view: View) -> Effects:
        """Return the present view for a stage that speaks alone: its pipeline was broken, and it has not heard so."""
        if not isinstance(message, m.Report | m.Farewell | m.Held) or message.sender.at(0) in view.here:
            return []
        return [Send(message.sender, m.NewView(view=view.at_stage(message.sender.stage)))]

    def survivors(self, dead: Address, view: View) -> Effects:
        """Return the present view for the other stages of a pipeline that has lost one: they wait in vain."""
        if dead.role is not Role.STAGE:
            return []
        others = [stage for stage in range(self._stages) if stage != dead.stage]
        return [Send(dead.at(stage), m.NewView(view=view.at_stage(stage))) for stage in others]


def told(message: m.Message, stage: int) -> m.Message:
    """Return a message of the coordinator's in the terms of a stage."""
    match message:
        case m.NewView():
            return m.NewView(view=message.view.at_stage(stage))
        case m.Welcome():
            view, participants = message.view.at_stage(stage), _at(message.participants, stage)
            return msgspec.structs.replace(message, view=view, participants=participants)
        case m.Decision():
            participants, leavers = _at(message.participants, stage), at_stage(message.leavers, stage)
            return msgspec.structs.replace(message, participants=participants, leavers=leavers)
    return message


def _at(addresses: tuple[Address, ...] | None, stage: int) -> tuple[Address, ...] | None:
    return None if addresses is None else at_stage(addresses, stage)


# What the messages of all stages come to, in the order of the stages


def _join(joins: Sequence[m.Join]) -> m.Join:
    """With the lowest ticket: those who have not heard that the pipeline was taken for dead are to ask again."""
    return msgspec.structs.replace(
        joins[0],
        num_elements=sum(join.num_elements for join in joins),
        step=max(join.step for join in joins),
        ticket=min(join.ticket for join in joins),
    )


def _report(reports: Sequence[m.Report]) -> m.Report:
    """The signal of the stage where it is strongest; metrics as the registry combines them."""
    values = tuple(max(found) for found in zip(*(report.values for report in reports), strict=True))
    return msgspec.structs.replace(
        reports[0],
        view=min(report.view for report in reports),
        values=values,
        metrics={**merged([report.metrics for report in reports]), **_by_stage([report.metrics for report in reports])},
        wants_out=any(report.wants_out for report in reports),
        skipped=tuple(found for report in reports for found in report.skipped),
    )


def _by_stage(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what is told of every stage on its own."""
    names = [metric.name for metric in METRICS if metric.by_stage]
    return {f"{name}/{stage}": found[name] for stage, found in enumerate(told) for name in names if name in found}


def _farewell(farewells: Sequence[m.Farewell]) -> m.Farewell:
    metrics: Mapping[str, float] = {}
    for farewell in farewells:
        metrics = {**metrics, **farewell.metrics}
    return msgspec.structs.replace(
        farewells[0],
        finished=all(farewell.finished for farewell in farewells),
        metrics=metrics,
        saved=any(farewell.saved for farewell in farewells),
    )


def _held(held: Sequence[m.Held]) -> m.Held | None:
    """The furthest of its stages is where a pipeline is."""
    if len({found.number for found in held}) > 1:
        return None
    return msgspec.structs.replace(held[0], step=max(found.step for found in held))


def _view_seen(seen: Sequence[m.ViewSeen]) -> m.ViewSeen:
    return m.ViewSeen(sender=seen[0].sender, number=min(found.number for found in seen))


def _covered(told: Sequence[m.Covered]) -> m.Covered | None:
    backups = {found.backup.at(0) for found in told}
    return m.Covered(sender=told[0].sender.at(0), backup=told[0].backup.at(0)) if len(backups) == 1 else None


def _checkpoint_cut(told: Sequence[m.CheckpointCut]) -> m.CheckpointCut | None:
    return told[0] if len({found.checkpoint for found in told}) == 1 else None


def _checkpoint_part(parts: Sequence[m.CheckpointPart]) -> m.CheckpointPart | None:
    """The first that could not be written speaks for all."""
    if len({part.checkpoint for part in parts}) > 1:
        return None
    problem = next((part.problem for part in parts if part.problem is not None), None)
    files = {name: checksum for part in parts for name, checksum in part.files.items()}
    return m.CheckpointPart(checkpoint=parts[0].checkpoint, sender=parts[0].sender, problem=problem, files=files)
