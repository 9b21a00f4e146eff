"""Versions of knobs: the runtime counts its own, and those of the books go on where a runtime went back."""

from __future__ import annotations

from raysync.ports import JobStatus
from service.store import JobRow


def has_gone_back(row: JobRow, status: JobStatus) -> bool:
    """Return whether the runtime has lost a version that the books have; one that waits for a decision is not lost.

    Args:
        row: The job as it was before it was asked.
        status: What its controller answered.

    """
    return status.asked.version + row.knob_shift < row.knob_version
