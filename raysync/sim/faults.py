"""Faults at named points of the protocol, and random schedules of them from a seed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal, Self

from pydantic import Field, model_validator

from raysync.value import Value

Action = Literal["kill", "suspect", "freeze", "drop", "duplicate", "delay", "reorder"]

POINTS = (
    "worker.computed",
    "worker.reported",
    "worker.decided",
    "worker.pushed",
    "worker.updating",
    "worker.synced",
    "worker.saving",
    "shard.received",
    "shard.closed",
    "shard.saved",
    "shard.sending",
    "coordinator.decided",
    "coordinator.saved",
    "coordinator.sending",
    "evaluator.judging",
    "worker.writing",
    "shard.writing",
    "coordinator.writing",
    "coordinator.cut",
)
"""Where a process can be killed. `saved`: the state is durable, nothing is sent yet. `sending`: one message is out,
the rest is not. `writing`: its part of a checkpoint is half written. `cut`: all have copied themselves.
"""

MESSAGES = (
    *(
        "Join",
        "Report",
        "Leave",
        "Farewell",
        "Welcome",
        "AskAgain",
        "Decision",
        "Goodbye",
        "SaveModel",
        "NewView",
        "Fetch",
        "Init",
        "Push",
        "HasPush",
        "Pull",
        "Handover",
    ),
    *(
        "NeedInit",
        "NeedPush",
        "State",
        "Update",
        "Ack",
        "ViewSeen",
        "CheckpointRequest",
        "CheckpointPart",
        "CheckpointCut",
    ),
    *("Judge", "Judged", "SendNext"),
    *("Copy", "Fill", "Copied", "Covered", "Recount", "Account", "AskView"),
)
"""The messages that can be lost, doubled, delayed or overtaken."""

LATE_MESSAGES = ("CatchUp",)
"""The same where a step does not wait for who is late."""

MESH_POINTS = ("stage.forward", "stage.backward")
MESH_MESSAGES = (
    *("Activation", "SendAgain", "GradNorm", "StageModel"),
    *("PushPart", "PartMean", "Hold", "Held", "Meet"),
)
"""The same for pipelines, and for replicas that run free."""


class Fault(Value):
    """The nth time `where` comes up, `action` happens."""

    action: Action
    where: str
    """A point of the protocol for kill, freeze and suspect (a live worker declared dead), else a message's name."""
    nth: int = Field(default=1, ge=1)
    delay_s: float = Field(default=0.3, gt=0)
    """How long a message is delayed, or a process stays down or frozen."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        is_of_process = self.action in ("kill", "suspect", "freeze")
        known = (*POINTS, *MESH_POINTS) if is_of_process else (*MESSAGES, *LATE_MESSAGES, *MESH_MESSAGES)
        if self.where not in known:
            raise ValueError(f"{self.action} cannot happen at {self.where!r}; known: {', '.join(known)}")
        if self.action == "suspect" and not self.where.startswith(("worker.", "stage.")):
            raise ValueError(f"only workers can be suspected, not {self.where!r}")
        return self


class Injector:
    """Counts what comes up and hands out the faults that are due."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._faults = list(faults)
        self._seen: Counter[str] = Counter()
        self.happened: list[Fault] = []

    def due(self, where: str) -> Fault | None:
        """Count one occurrence of `where` and return the fault that strikes there, if any."""
        self._seen[where] += 1
        for fault in self._faults:
            if fault.where == where and fault.nth == self._seen[where]:
                self._faults.remove(fault)
                self.happened.append(fault)
                return fault
        return None


def random_faults(seed: int, count: int, horizon: int, *, in_mesh: bool = False) -> tuple[Fault, ...]:
    """Return `count` faults spread over the first `horizon` occurrences of points and messages; with `in_mesh` those of
    pipelines and of replicas that run free among them.
    """
    generator = random.Random(f"faults/{seed}")
    points, messages = (*POINTS, *MESH_POINTS * in_mesh), (*MESSAGES, *MESH_MESSAGES * in_mesh)
    faults = []
    for _ in range(count):
        action: Action = generator.choice(("kill", "kill", "suspect", "drop", "duplicate", "delay", "reorder"))
        worker_points = tuple(point for point in points if point.startswith(("worker.", "stage.")))
        places = {"kill": points, "suspect": worker_points}.get(action, messages)
        delay_s = round(generator.choice((0.02, 0.1, 0.5, 2.0)) * generator.uniform(0.5, 1.5), 3)
        faults.append(
            Fault(action=action, where=generator.choice(places), nth=generator.randint(1, horizon), delay_s=delay_s)
        )
    return tuple(faults)


def random_freezes(seed: int, count: int, horizon: int, *, in_mesh: bool = False) -> tuple[Fault, ...]:
    """Return `count` processes that stand still at a point, for less or for more than it takes to notice."""
    generator = random.Random(f"freezes/{seed}")
    points = (*POINTS, *MESH_POINTS * in_mesh)
    return tuple(
        Fault(
            action="freeze",
            where=generator.choice(points),
            nth=generator.randint(1, horizon),
            delay_s=round(generator.choice((0.1, 0.5, 1.0, 4.0)) * generator.uniform(0.5, 1.5), 3),
        )
        for _ in range(count)
    )
