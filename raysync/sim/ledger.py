"""What a simulated job came to: bytes by kind, events each once, evaluations with their times."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from raysync.engine import messages as m
from raysync.engine.coordinator.step_metrics import StepMetrics
from raysync.events import Event
from raysync.metrics import is_evaluation


@dataclass
class SimResult:
    """What a simulated job came to."""

    virtual_time_s: float
    metrics: dict[str, float]
    """The last value of every metric."""
    events: list[Event]
    bytes_up: int
    """Payload bytes workers pushed."""
    bytes_down: int
    """Payload bytes of updates workers received."""
    bytes_state: int
    """Bytes of whole blocks sent to initialise shards and newcomers."""
    lssr: float
    rounds: int
    staleness_max: int
    staleness_mean: float
    eval_times: list[tuple[float, int, dict[str, float]]] = field(default_factory=list)
    """(virtual time, step, metrics) of every evaluation."""


class SimLedger:
    """Counts what is sent and collects what is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.eval_times: list[tuple[float, int, dict[str, float]]] = []
        self.bytes_state = self.bytes_up = self.bytes_down = 0
        self._first = 0

    def sent(self, message: m.Message) -> None:
        """Count a message's payload."""
        if isinstance(message, m.Push):
            self.bytes_up += message.payload_bytes
        elif isinstance(message, m.Update):
            self.bytes_down += message.payload_bytes
        else:
            self.bytes_state += message.payload_bytes

    @property
    def told_step(self) -> int:
        """The last step whose decision has been told."""
        return max((event.step for event in self.events if event.kind == "decision"), default=-1)

    @property
    def told(self) -> tuple[m.Told, ...]:
        """The last decisions that have been."""
        last = [event for event in self.events if event.kind == "decision"][-m.REMEMBERED :]
        found = [(event.step, event.data) for event in last]
        return tuple(
            m.Told(step, data["sync"], data["round"], data["reason"], tuple(data.get("late", ())))
            for step, data in found
        )

    def begin_life(self) -> None:
        """Another coordinator takes over, and numbers its events from 0."""
        self._first = self.events[-1].sequence + 1 if self.events else 0

    def hear(self, event: Event, now_s: float) -> bool:
        """Take in an event; return whether it is new."""
        event = msgspec.structs.replace(event, sequence=event.sequence + self._first)
        if self.events and event.sequence <= self.events[-1].sequence:
            return False
        self.events.append(event)
        evaluated = {name: value for name, value in event.data.items() if is_evaluation(name)}
        if evaluated:
            self.eval_times.append((now_s, event.step, evaluated))
        return True

    def result(self, counted: StepMetrics, now_s: float) -> SimResult:
        """Return what the job came to."""
        metrics: dict[str, float] = {}
        for event in self.events:
            if event.kind == "metrics":
                metrics |= event.data
        return SimResult(
            virtual_time_s=now_s,
            metrics=metrics,
            events=self.events,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            bytes_state=self.bytes_state,
            lssr=counted.lssr,
            rounds=counted.sync_steps,
            staleness_max=counted.staleness_max,
            staleness_mean=counted.staleness_sum / max(1, counted.reads),
            eval_times=self.eval_times,
        )
