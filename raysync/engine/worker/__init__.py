"""A data-parallel worker: a member that computes whole steps on a replica of the whole model."""

from __future__ import annotations

from raysync.engine.member import Phase
from raysync.engine.worker.worker import Worker

__all__ = ["Phase", "Worker"]
