"""Everything the cores say to each other. Messages are plain data, can be repeated without harm, and carry their
view's number.
"""

from __future__ import annotations

import msgspec

from raysync.address import Address
from raysync.control.view import View
from raysync.knobs import Knobs
from raysync.sync.base import PayloadKind, UpdateKind


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all messages."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of encoded vector inside."""
        return len(getattr(self, "payload", None) or b"")


# Worker -> coordinator


class Join(Message, frozen=True):
    """I am ready to train; also said by a worker that was left out of a view while alive."""

    sender: Address
    num_samples: int
    num_elements: int
    """Length of the flat vector: all workers must agree."""
    step: int = 0
    """The first step this worker has not yet contributed to."""
    ticket: int = 0
    """How often this worker has been taken for dead, as it was told; the echo of a dead worker does not know."""
    told: str = ""
    """What whoever runs the job should know before it starts."""


class Judgement(msgspec.Struct, frozen=True):
    """What a model was found to be worth, on a part of the evaluation data."""

    round: int
    """The synchronisation after which the model was as it was judged; -1 for the first model of all."""
    part: int
    parts: int
    samples: int
    metrics: dict[str, float]


class Skipped(msgspec.Struct, frozen=True):
    """A batch that counts for nothing, since something in it was not finite."""

    who: Address
    step: int
    problem: str
    parameter: str = ""
    """Where it was seen first; empty for the loss."""


class Report(Message, frozen=True):
    """What I saw at a step. Under asynchronous strategies also: my update of this step is on the shards."""

    view: int
    sender: Address
    step: int
    values: tuple[float, ...]
    metrics: dict[str, float]
    wants_out: bool = False
    """The sender has asked to leave, in case that was not heard."""
    judged: Judgement | None = None
    """The sender's part of an evaluation, where one is made at this step."""
    skipped: tuple[Skipped, ...] = ()
    """Batches of the sender's that count for nothing, and were not told of yet."""
    landed: int = -1
    """The last round that the sender has taken in, where rounds land late."""


class AskView(Message, frozen=True):
    """I have not been answered for a while: is this still the view?"""

    sender: Address
    view: int


class Held(Message, frozen=True):
    """I compute no further until I am told where all meet."""

    sender: Address
    number: int
    step: int
    """The next one I would finish."""


class Leave(Message, frozen=True):
    """The sender would like to leave at the next step decided on."""

    sender: Address


class Farewell(Message, frozen=True):
    """I am done: the job has ended for me, or I have left and handed over what I had not sent."""

    sender: Address
    finished: bool
    """Whether the sender has seen the job's last round."""
    metrics: dict[str, float]
    saved: bool = False
    """Whether the sender has saved the final model: it is where it belongs."""


# Coordinator -> worker


class Welcome(Message, frozen=True):
    """You are a member from `step` on; fetch the state after `round`."""

    view: View
    knobs: Knobs
    step: int
    round: int
    participants: tuple[Address, ...] | None
    """Who contributes to `round`, in case a shard has not heard of it."""
    finished: bool = False
    """The job has made its last step; fetch and rest."""
    free_until: int = 0
    """The next step that is decided about: to it workers run by themselves."""


class Recount(Message, frozen=True):
    """I have taken over from a coordinator that is gone: tell me what you know."""

    life: int
    after_step: int = -1
    """Decisions about later steps may be in nobody's books."""


class CatchUp(Message, frozen=True):
    """The others have gone on without you: keep what you have to send, take part again from `step` on, with the state
    after `round`.
    """

    view: View
    knobs: Knobs
    step: int
    round: int
    participants: tuple[Address, ...] | None


class AskAgain(Message, frozen=True):
    """You were taken for dead; if you are not, ask again with this ticket."""

    ticket: int


class Decision(Message, frozen=True):
    """What all workers do at the end of a step, and why."""

    view: int
    step: int
    sync: bool
    reason: str
    knobs: Knobs
    round: int
    """The number of the synchronisation this step ends in, or of the last one before it."""
    participants: tuple[Address, ...] | None = None
    """Who contributes to it; None: all who take part in the step."""
    num_participants: int = 0
    payload_kind: PayloadKind = "displacement"
    leavers: tuple[Address, ...] = ()
    """Who leaves after this step."""
    final: bool = False
    lands: bool = False
    """No round is on its way when the next step begins, neither an earlier one nor the one this step ends in."""
    free_until: int = 0
    """The next step that is decided about: to it workers run by themselves."""
    life: int = 0
    """Which of the job's coordinators made it, or has made it its own."""
    last_sync_step: int = -1
    late: tuple[Address, ...] = ()
    """Who is left behind: it was made without them, and is nothing to them."""
    memory: dict[str, float] = {}
    """What the strategy remembers after it: whoever holds a decision can tell a new coordinator how to go on."""


class Hold(Message, frozen=True):
    """Compute no further and tell me where you are: all are to meet."""

    number: int


class Meet(Message, frozen=True):
    """Run on by yourself to this step, and wait for the decision about it."""

    number: int
    step: int


class Account(Message, frozen=True):
    """What a core knows, for a coordinator that has taken over."""

    sender: Address
    life: int
    view: View
    is_in: bool = False
    """The sender is a member under that view: it trains, or is on its way out, or has come to the end."""
    is_synced: bool = False
    """The decision about its step is being carried out."""
    ticket: int = 0
    step: int = 0
    """The one it computes, or has computed and waits with."""
    first_step: int = 0
    """The first one it took part in."""
    round: int = -1
    """The last synchronisation it has heard of."""
    wants_out: bool = False
    call: int = 0
    """The last call to a meeting that it has heeded."""
    checkpoint: int = 0
    """The last one it gave its part of."""
    covered_by: Address | None = None
    """Of a shard: the backup that knows all it has said."""
    begun: int = -1
    """Of a shard: the last synchronisation that anybody has spoken of."""
    decisions: tuple[Decision, ...] = ()
    """In order: the last, and those before it that may be in nobody's books."""


class Goodbye(Message, frozen=True):
    """Your farewell was heard."""

    life: int = 0
    """Whoever has been asked by a later coordinator takes leave of that one."""


class SaveModel(Message, frozen=True):
    """Save the final model: whoever was to do it is gone."""


# Worker -> evaluator -> coordinator


class Judge(Message, frozen=True):
    """Judge this model: the parameters and buffers all workers see at a step, exactly."""

    sender: Address
    step: int
    round: int
    payload: bytes
    replicas: int = 1
    """How many replicas send theirs: what is judged is their mean."""


class SendNext(Message, frozen=True):
    """I have judged your model; until then the next one would only wait."""

    step: int


class Judged(Message, frozen=True):
    """What the model of a step was found to be worth."""

    sender: Address
    step: int
    judgement: Judgement


# Stage -> stage of one pipeline


class Activation(Message, frozen=True):
    """What a stage makes of a microbatch, for the next one; or, coming back, the gradient of what it was given."""

    sender: Address
    life: int
    """How often the pipeline has been broken: what an earlier life sent is nobody's."""
    step: int
    microbatch: int
    is_gradient: bool
    dtype: str
    shape: tuple[int, ...]
    payload: bytes
    samples: tuple[int, ...] = ()
    """Which training samples it is made of; the last stage needs their targets. Gradients need not say."""
    count: int = 1
    """How many microbatches the step has."""
    total: int = 0
    """How many samples they have together."""


class SendAgain(Message, frozen=True):
    """I wait for this activation, or gradient."""

    sender: Address
    life: int
    step: int
    microbatch: int
    is_gradient: bool


class GradNorm(Message, frozen=True):
    """The squared norm of a stage's gradient of a step, where the whole model's is bounded."""

    sender: Address
    life: int
    step: int
    square: float
    asks: bool = False
    """The sender lacks the receiver's."""


class StageModel(Message, frozen=True):
    """The final parameters and buffers of a stage, exactly, for the first stage to save with its own."""

    sender: Address
    payload: bytes


class NewView(Message, frozen=True):
    """The membership has changed, or you have spoken with an old view's number."""

    view: View


# Worker -> shard


class Fetch(Message, frozen=True):
    """Send me your block as it is after `round`."""

    view: int
    sender: Address
    block: int
    round: int
    participants: tuple[Address, ...] | None


class Init(Message, frozen=True):
    """The first values of a block."""

    view: int
    sender: Address
    block: int
    content: str
    payload: bytes


class Push(Message, frozen=True):
    """My contribution to a block in a round (under asynchronous strategies: at my clock)."""

    view: int
    sender: Address
    block: int
    round: int
    participants: tuple[Address, ...] | None
    payload: bytes
    payload_kind: PayloadKind
    weight: float
    lr: float


class HasPush(Message, frozen=True):
    """Have you my push? It is not sent again before you say that you have not."""

    view: int
    sender: Address
    block: int
    round: int


class Pull(Message, frozen=True):
    """I contribute nothing to this round but need its result; under asynchronous strategies: what has changed for
    me?
    """

    view: int
    sender: Address
    block: int
    round: int
    participants: tuple[Address, ...] | None


class PushPart(Message, frozen=True):
    """My values of a part of a block, as their difference from the last mean of it that I have seen; an empty payload
    if I send none this time.
    """

    view: int
    sender: Address
    block: int
    round: int
    base: int
    """The round of that mean."""
    payload: bytes
    extra: bytes = b""
    """Moments on the same coordinates, where they are averaged too."""


class Handover(Message, frozen=True):
    """A leaver's residual, to be added to the next round."""

    view: int
    sender: Address
    block: int
    share: float
    """The weight the leaver had in the mean."""
    payloads: dict[PayloadKind, bytes]


# Shard -> worker


class NeedInit(Message, frozen=True):
    """I hold no values yet: send me yours."""

    block: int


class NeedPush(Message, frozen=True):
    """I have no push of yours for this round: send it again."""

    block: int
    round: int


class State(Message, frozen=True):
    """A block as all workers see it after `round`, in full."""

    view: int
    block: int
    round: int
    payload: bytes
    applied_round: int
    """The last round to which the asking worker contributed, -1 for none."""
    part_rounds: dict[int, int] = {}
    """Where parts are averaged between rounds: the last mean of each part that is in it already."""


class Update(Message, frozen=True):
    """What a round changed in a block; to a contributor also the acknowledgement of its push."""

    block: int
    round: int
    payload_kind: UpdateKind
    """`values`: not what has changed, but the block as all see it now."""
    payload: bytes


class PartMean(Message, frozen=True):
    """What a round changed in the mean of a part of a block; it lands when it comes."""

    block: int
    round: int
    payload: bytes
    extra: bytes = b""
    newest: int = -1
    """Not -1 for who asks for a round long past: the payload is the mean itself, as it is after this round."""


class Ack(Message, frozen=True):
    """Your push (or handover) is applied and safe."""

    block: int
    round: int


# Shard -> the shard that stands by for it


class Copy(Message, frozen=True):
    """What a shard was told, for the one that follows it: heard in the same order, it comes to the same."""

    sender: Address
    life: int
    """The view in which the receiver became the sender's backup: what was sent before counts no more."""
    number: int
    heard: Fetch | Init | Push | Pull | PushPart | Handover | NewView
    """Without its payload."""
    payload: bytes = b""
    covers: bool = False
    """Whoever has heard all up to here knows all that the sender has said."""


class Fill(Message, frozen=True):
    """A part of all that a shard is, for one that begins to follow it: the head, or a block."""

    sender: Address
    life: int
    number: int
    part: int
    parts: int
    payload: bytes


class Copied(Message, frozen=True):
    """Whatever was copied up to a number is heard here as well."""

    sender: Address
    life: int
    number: int


# Coordinator <-> shard, and every core for checkpoints


class ViewSeen(Message, frozen=True):
    """The shard has adopted a view."""

    sender: Address
    number: int


class Covered(Message, frozen=True):
    """The sender's backup knows all that the sender has said, from now on."""

    sender: Address
    backup: Address


class CheckpointRequest(Message, frozen=True):
    """Copy yourself as you are, all cores are at rest; or, once all have, what became of your part?"""

    checkpoint: int
    has_cut: bool = False
    """All cores have copied themselves, and are at rest no more."""


class CheckpointCut(Message, frozen=True):
    """I have copied myself; what I copied is being written."""

    checkpoint: int
    sender: Address


class CheckpointPart(Message, frozen=True):
    """One core's share of a checkpoint is written, or could not be."""

    checkpoint: int
    sender: Address
    problem: str | None = None
    """Why it could not be written."""
    files: dict[str, str] = {}
    """The files it is in, with their checksums."""


# Host -> core


class PartKept(Message, frozen=True):
    """The part of a checkpoint that the core gave is kept, or could not be."""

    checkpoint: int
    problem: str | None = None
    """Why it could not be kept."""
    files: dict[str, str] = {}
    """The files it is in, with their checksums."""


class ModelKept(Message, frozen=True):
    """The final model is where it belongs."""


# Host -> coordinator


class Died(Message, frozen=True):
    """A worker is gone without a word."""

    who: Address


REMEMBERED = 8
"""So many decisions a member may lack that others have heard of, or the job's history."""


class Told(msgspec.Struct, frozen=True):
    """A decision as the job's history has it."""

    step: int
    sync: bool
    round: int
    reason: str
    late: tuple[int, ...] = ()
    """Who was left behind, by number."""


class Succession(msgspec.Struct, frozen=True):
    """What a coordinator is told that takes over from one that is gone; the rest it asks for."""

    life: int
    """How many there were before it."""
    roster: tuple[Address, ...]
    """Every core there is to ask."""
    parted: tuple[Address, ...] = ()
    """Members that have ended in good order."""
    told_step: int = -1
    """The last step whose decision is in the job's history."""
    told: tuple[Told, ...] = ()
    """The last ones that are: they hold, whether or not any member has heard of them."""


class StandBy(Message, frozen=True):
    """A shard has been started that may follow one of the others: the one whose slot its number falls on."""

    who: Address


class Begin(Message, frozen=True):
    """Make decisions from now on, with knobs at least as new as these."""

    knobs: Knobs
    workers: int | None = None
    """How many workers were started: the first step waits for them; the job's own number by default."""
    gone: tuple[Address, ...] = ()
    """Of whoever trained when the checkpoint was taken: who was not started again."""
    succession: Succession | None = None


class Stop(Message, frozen=True):
    """The job is to end with its next step."""

    reason: str


class TakeCheckpoint(Message, frozen=True):
    """A checkpoint is wanted."""


class Turn(Message, frozen=True):
    """Knobs were turned; they take effect at the next step decided on."""

    changes: dict[str, float | int | bool | None]
    expected_version: int | None = None
    by: str = ""
    """Who turned them, where that is known."""


AnyMessage = (
    Join
    | Report
    | Leave
    | Farewell
    | Welcome
    | AskAgain
    | CatchUp
    | Recount
    | Account
    | Decision
    | Goodbye
    | SaveModel
    | NewView
    | Fetch
    | Init
    | Push
    | HasPush
    | Pull
    | Handover
    | Judge
    | Judged
    | SendNext
    | PushPart
    | PartMean
    | AskView
    | Hold
    | Held
    | Meet
    | Activation
    | SendAgain
    | GradNorm
    | StageModel
    | NeedInit
    | NeedPush
    | State
    | Update
    | Ack
    | ViewSeen
    | Copy
    | Fill
    | Copied
    | Covered
    | StandBy
    | CheckpointRequest
    | CheckpointCut
    | CheckpointPart
    | Died
    | Begin
    | Stop
    | TakeCheckpoint
    | PartKept
    | ModelKept
    | Turn
)

FromWorker = Fetch | Init | Push | HasPush | Pull | PushPart | Handover
"""What a worker says to a shard."""
OfRound = Fetch | Push | HasPush | Pull
"""What of it names a round."""


def life_of(message: Message) -> int | None:
    """Return which of the job's coordinators a message comes from, where what its successor says must prevail."""
    match message:
        case Welcome() | NewView() | CatchUp():
            return message.view.life
        case Decision() | Recount() | Goodbye():
            return message.life
    return None
