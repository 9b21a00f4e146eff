"""What a control plane and the runtime that carries its jobs say to each other: plain values, no code.

The two live in different processes. A control plane asks by method name; the runtime answers with one of the values
below, or with an error by its class name and facts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from raysync import errors
from raysync.errors import RaysyncError, RuntimeFailed


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """An event with the job's own number; `source` is its number at the coordinator, if it comes from there."""

    sequence: int
    kind: str
    time_s: float
    step: int = 0
    worker: int | None = None
    knob_version: int = 0
    source: int | None = None
    data: dict[str, Any]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be started, or started again where it stopped."""

    job: str
    spec: str
    """The job as JSON."""
    storage: str
    """Where the job's folder is made."""
    working_dir: str | None = None
    """A folder with the user's code, on the runtime's own file system."""
    pip: tuple[str, ...] = ()
    resume_from: str | None = None
    """The checkpoint to start from."""
    again: bool = False
    """It ran before: clear away what is left of it and go on from its folder."""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be seen of a job now."""

    has_controller: bool
    """Its controller answers."""
    end: str | None = None
    """The terminal state its folder tells of."""
    end_reason: str = ""
    has_checkpoint: bool = False


class Records(msgspec.Struct, frozen=True):
    """Events of a job, in order, and where to read on."""

    records: list[Record]
    offset: int = 0
    """Bytes of the journal read so far; only when it is read from the job's folder."""


class LogPage(msgspec.Struct, frozen=True):
    """A piece of a job's log: whole lines."""

    lines: list[str]
    offset: int
    """Where the next page begins."""


class CheckpointSeen(msgspec.Struct, frozen=True):
    """A complete checkpoint in a job's folder."""

    name: str
    path: str
    step: int
    round: int
    workers: int
    elapsed_s: float
    size_bytes: int


class Greeting(msgspec.Struct, frozen=True):
    """The runtime's first word: the cluster it has joined, or why it could not."""

    cluster: str | None
    problem: str | None = None


class Ask(msgspec.Struct, frozen=True):
    """A question to the runtime."""

    number: int
    method: str
    arguments: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """Its answer: a value, or an error."""

    number: int
    value: Any = None
    error: str | None = None
    """The class of an error of raysync's, or any other name."""
    facts: tuple[Any, ...] = ()
    """What the error is made of; for a class that is not raysync's, its text."""


def failed(number: int, error: Exception) -> Answer:
    """Return an error as an answer."""
    if _known(type(error).__name__) is type(error):
        return Answer(number, None, type(error).__name__, error.args)
    return Answer(number, None, type(error).__name__, (str(error),))


def raised(answer: Answer) -> RaysyncError:
    """Return the error an answer stands for."""
    known = _known(answer.error or "")
    if known is not None:
        facts = answer.facts
        if known is errors.SpecError:
            facts = (tuple(errors.Problem(*problem) for problem in facts[0]),)
        return known(*facts)
    return RuntimeFailed(str(answer.error), str(answer.facts[0]) if answer.facts else "")


def _known(name: str) -> type[RaysyncError] | None:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, RaysyncError) else None


def check_ray_address(address: str) -> str:
    """Return the address of a cluster, or raise `ValueError` if it is one nobody can launch jobs through."""
    if address.startswith("ray://"):
        raise ValueError(
            "Ray's client protocol (ray://) does not carry jobs that bring their own code; make this machine a node, "
            "ray start --address=HEAD:6379 --num-cpus=0, and give HEAD:6379 as the address"
        )
    return address
