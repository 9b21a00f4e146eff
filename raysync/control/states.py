"""The states of a job; Ray Jobs' words where it has them."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is in its life."""

    PENDING = "PENDING"
    """waits for room in the cluster"""
    STARTING = "STARTING"
    """its actors come up and join"""
    RUNNING = "RUNNING"
    """trains"""
    PAUSED = "PAUSED"
    """holds between two steps until it is resumed"""
    RESIZING = "RESIZING"
    """trains while workers join or leave"""
    RECOVERING = "RECOVERING"
    """something died and is being replaced"""
    STOPPING = "STOPPING"
    """makes its last step because it was asked to"""
    SUCCEEDED = "SUCCEEDED"
    """has spent its budget or reached its target"""
    FAILED = "FAILED"
    """could not go on; the reason says why"""
    STOPPED = "STOPPED"
    """ended because it was asked to"""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing comes after."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)
