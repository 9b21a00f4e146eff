"""Everything the cores say to each other. Messages are plain data, can be repeated without harm, and carry their
view's number.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from raysync.control.view import View
from raysync.knobs import Knobs
from raysync.sync.base import PayloadKind

COORDINATOR = "coordinator"


def worker_address(worker: int) -> str:
    """Return where a worker is reached."""
    return f"worker/{worker}"


def shard_address(shard: int) -> str:
    """Return where a shard is reached."""
    return f"shard/{shard}"


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all messages."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of encoded vector inside."""
        return len(getattr(self, "payload", None) or b"")


class Send(NamedTuple):
    """A message and where it goes."""

    to: str
    message: Message


# Worker -> coordinator


class Join(Message, frozen=True):
    """I am ready to train; also said by a worker that was left out of a view while alive."""

    worker: int
    num_samples: int
    num_elements: int
    """Length of the flat vector: all workers must agree."""
    step: int = 0
    """The first step this worker has not yet contributed to."""
    ticket: int = 0
    """How often this worker has been taken for dead, as it was told; the echo of a dead worker does not know."""


class Report(Message, frozen=True):
    """What I saw at a step. Under asynchronous strategies also: my update of this step is on the shards."""

    view: int
    worker: int
    step: int
    values: tuple[float, ...]
    metrics: dict[str, float]
    wants_out: bool = False
    """The sender has asked to leave, in case that was not heard."""


class Leave(Message, frozen=True):
    """I would like to leave at the next step decided on."""

    worker: int


class Farewell(Message, frozen=True):
    """I am done: the job has ended for me, or I have left and handed over what I had not sent."""

    worker: int
    finished: bool
    """Whether the sender has seen the job's last round."""
    metrics: dict[str, float]


# Coordinator -> worker


class Welcome(Message, frozen=True):
    """You are a member from `step` on; fetch the state after `round`."""

    view: View
    knobs: Knobs
    step: int
    round: int
    participants: tuple[int, ...]
    """Who contributes to `round`, in case a shard has not heard of it."""
    finished: bool = False
    """The job has made its last step; fetch and rest."""


class AskAgain(Message, frozen=True):
    """You were taken for dead; if you are not, ask again with this ticket."""

    ticket: int


class Decision(Message, frozen=True):
    """What everybody does at the end of a step, and why."""

    view: int
    step: int
    sync: bool
    reason: str
    knobs: Knobs
    round: int
    """The number of the synchronisation this step ends in, or of the last one before it."""
    participants: tuple[int, ...] = ()
    payload_kind: PayloadKind = "delta"
    leavers: tuple[int, ...] = ()
    """Who leaves after this step."""
    final: bool = False


class Goodbye(Message, frozen=True):
    """Your farewell was heard."""


class NewView(Message, frozen=True):
    """The membership has changed, or you have spoken with an old view's number."""

    view: View


# Worker -> shard


class Fetch(Message, frozen=True):
    """Send me your block as it is after `round`."""

    view: int
    worker: int
    block: int
    round: int
    participants: tuple[int, ...]


class Init(Message, frozen=True):
    """The first values of a block."""

    view: int
    worker: int
    block: int
    role: str
    payload: bytes


class Push(Message, frozen=True):
    """My contribution to a block in a round (under asynchronous strategies: at my clock)."""

    view: int
    worker: int
    block: int
    round: int
    participants: tuple[int, ...]
    payload: bytes
    payload_kind: PayloadKind
    weight: float
    lr: float
    pull_ratio: float | None = None


class Pull(Message, frozen=True):
    """I contribute nothing to this round but need its result; under asynchronous strategies: what has changed for
    me?
    """

    view: int
    worker: int
    block: int
    round: int
    participants: tuple[int, ...]
    pull_ratio: float | None = None


class Handover(Message, frozen=True):
    """A leaver's residual, to be added to the next round."""

    view: int
    worker: int
    block: int
    share: float
    """The weight the leaver had in the mean."""
    payloads: dict[PayloadKind, bytes]


# Shard -> worker


class NeedInit(Message, frozen=True):
    """I hold no values yet: send me yours."""

    block: int


class State(Message, frozen=True):
    """A block as all workers see it after `round`, in full."""

    view: int
    block: int
    round: int
    payload: bytes
    applied_round: int
    """The last round to which the asking worker contributed, -1 for none."""


class Update(Message, frozen=True):
    """What a round changed in a block; to a contributor also the acknowledgement of its push."""

    block: int
    round: int
    payload_kind: PayloadKind
    payload: bytes


class Ack(Message, frozen=True):
    """Your push (or handover) is applied and safe."""

    block: int
    round: int


# Coordinator <-> shard, and everybody for checkpoints


class ViewSeen(Message, frozen=True):
    """The shard has adopted a view."""

    shard: int
    number: int


class SnapshotRequest(Message, frozen=True):
    """Save yourself as you are; everybody is at rest."""

    snapshot: int


class SnapshotPart(Message, frozen=True):
    """One core's share of a checkpoint has been handed to its host."""

    snapshot: int
    sender: str


# Host -> coordinator


class Died(Message, frozen=True):
    """A worker is gone without a word."""

    worker: int


class Stop(Message, frozen=True):
    """Somebody wants the job to end with its next step."""

    reason: str


class TakeSnapshot(Message, frozen=True):
    """Somebody wants a checkpoint."""


class Turn(Message, frozen=True):
    """Somebody turned knobs; they take effect at the next step decided on."""

    changes: dict[str, float | int | bool | None]
    expected_version: int | None = None


AnyMessage = (
    Join
    | Report
    | Leave
    | Farewell
    | Welcome
    | AskAgain
    | Decision
    | Goodbye
    | NewView
    | Fetch
    | Init
    | Push
    | Pull
    | Handover
    | NeedInit
    | State
    | Update
    | Ack
    | ViewSeen
    | SnapshotRequest
    | SnapshotPart
    | Died
    | Stop
    | TakeSnapshot
    | Turn
)
