"""A signal is what SelSync listens to: a meter on each worker, and one score made of all meters' values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from raysync.value import Value

if TYPE_CHECKING:
    from raysync.address import Address
    from raysync.sync.base import StepContext


@dataclass(frozen=True)
class StepStats:
    """What a worker measured in one step; a meter picks from it."""

    grad_sq: float
    """Squared L2 norm of the worker's own mini-batch gradient."""
    tensor_norms: float = 0.0
    """Sum of the L2 norms of the gradient's tensors; measured only where the signal asks for it."""
    drift_sq: float = 0.0
    """Squared distance from the last synchronised parameters, after the local step."""
    drift_along: float = 0.0
    """That displacement's component along the direction of the last synchronisation."""


class Meter:
    """A worker's side of a signal; without state unless a signal says otherwise."""

    def observe(self, stats: StepStats, num_workers: int) -> tuple[float, ...]:
        """Return the values this worker reports for the step."""
        return ()

    def state_dict(self) -> dict[str, list[float]]:
        """Return what must survive a restart."""
        return {}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Continue from a saved state."""


class Signal(Value):
    """The family of signals."""

    kind: str
    has_threshold: ClassVar[bool] = True
    """Whether `delta` means anything to this signal."""
    needs_drift: ClassVar[bool] = False
    """Whether the worker must measure its distance from the last synchronised parameters."""

    @property
    def warmup_steps(self) -> int:
        """How many steps pass before the score can be trusted."""
        return 0

    @property
    def needs_tensor_norms(self) -> bool:
        """Whether the worker must measure every tensor's norm on its own."""
        return False

    def meter(self) -> Meter:
        """Return a fresh worker-side meter."""
        return Meter()

    def score(self, context: StepContext) -> float:
        """Return the number compared with `delta`."""
        raise NotImplementedError

    def by_worker(self, context: StepContext) -> dict[Address, float]:
        """Return what each worker calls for on its own, where that can be compared with `delta`."""
        return {}

    def fires(self, score: float, delta: float) -> tuple[bool, str]:
        """Return whether the score calls for a synchronisation, and the sentence that says so; inf never fires."""
        fired = score >= delta and delta != float("inf")
        return fired, f"{self.kind} {score:.4g} {'>=' if fired else '<'} delta {delta:.4g}"
