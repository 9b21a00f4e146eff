"""How often a control plane asks about each of many jobs: so that all of them together cost what it can spend."""

from __future__ import annotations

MAX_POLLS = 200
"""So many questions wait for an answer at the same time."""
_WAIT_S = 5.0
_MAX_POLLS_PER_S = 400.0
_STATUS_S = 2.0
_FREE = 50
"""So few jobs are asked as fast as they tell."""


def poll_wait_s(num_jobs: int) -> float:
    """Return how long a question may wait for something to tell: less when others wait to ask theirs."""
    return _WAIT_S * min(1.0, MAX_POLLS / max(1, num_jobs))


def poll_pause_s(num_jobs: int) -> float:
    """Return how long to let a job alone after it has told something."""
    return 0.0 if num_jobs <= _FREE else num_jobs / _MAX_POLLS_PER_S


def status_every_s(num_jobs: int) -> float:
    """Return how often to look closer at a job: at what its events do not tell."""
    return _STATUS_S * max(1.0, num_jobs / MAX_POLLS)
