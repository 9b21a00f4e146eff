"""The coordinator of a job: membership, knobs, checkpoints, and the books of what happened. Who waits for whom, and so
when a step is decided on, is `raysync.engine.pacing`'s.
"""

from __future__ import annotations

from raysync.engine.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]
