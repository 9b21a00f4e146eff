"""The shard core: owns blocks, and lets each one's ledger say what becomes of pushes; answers whoever asks late.

What a shard has said, it still knows after a restart: that is the host's promise (`raysync.engine.core`). A push that
was lost with the process was never acknowledged, and its worker sends it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from raysync.address import COORDINATOR, Address
from raysync.blocks import Content
from raysync.compress.in_place import Room
from raysync.control.view import NO_VIEW, View
from raysync.engine import messages as m
from raysync.engine.checkpoints import Contribution
from raysync.engine.effects import Effect, Effects, Send
from raysync.engine.exchange import exchange_of
from raysync.engine.pacing import pacing_of
from raysync.engine.ports import Probe, no_probe
from raysync.engine.server.arrival_ledger import ArrivalLedger
from raysync.engine.server.block import ParameterBlock, ServerBlock, load_block, make_block
from raysync.engine.server.ledger import Ledger
from raysync.engine.server.mirror import Following, Mirror, packed, plain, unpacked
from raysync.engine.server.part_ledger import PartLedger
from raysync.engine.server.round_ledger import RoundLedger
from raysync.errors import ProtocolError
from raysync.knobs import apply_knobs
from raysync.spec import JobSpec

_MAX_PARKED = 10_000


class Shard:
    """One shard of the parameter server."""

    done = False
    """A shard only answers, until it is stopped."""

    def __init__(self, address: Address, spec: JobSpec, *, probe: Probe = no_probe) -> None:
        self.address, self._submitted, self.spec, self._probe = address, spec, spec, probe
        self._contribution = Contribution(address)
        self.view = NO_VIEW
        self._life = 0
        """Of the coordinator it obeys."""
        self.blocks: dict[int, ServerBlock] = {}
        self._means = Room()
        """Where its blocks work out means: one after the other, so that they stay near the processor."""
        self.ledgers: dict[int, Ledger] = {}
        self._parts: dict[int, PartLedger] = {}
        """Of the blocks whose parts are averaged between rounds."""
        self._parked: list[m.FromWorker] = []
        self._mirror, self._following = Mirror(address), Following(address)
        self._serves = self._is_succeeded = False
        """It is the shard of its slot; it was, and another is. Neither: it stands by, or has not heard of a view."""

    @property
    def is_covered(self) -> bool:
        """Whether another shard knows all that this one has said."""
        return self._mirror.is_covered

    @property
    def serves(self) -> bool:
        """Whether it is the shard of its slot."""
        return self._serves

    @property
    def covers(self) -> Address | None:
        """The shard it follows and knows all of that it has said."""
        return self._following.leader

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        """Take in a message and return what to say to it."""
        life = m.life_of(message)
        if life is not None:
            if life < self._life:
                return []  # its coordinator has been succeeded
            self._life = life
        match message:
            case m.Recount():
                return [Send(COORDINATOR, self._account(message.life))]
            case m.NewView():
                return self._on_news(message)
            case m.Copy():
                return self._following.copy(message, self._hear)
            case m.Fill():
                return self._following.fill(message, self._become)
            case m.Copied():
                return self._mirror.copied(message)
            case m.Covered():
                self._following.covered(message)
                return []
            case m.CheckpointRequest():
                return self._contribution.asked(message, self.state_dict)
            case m.PartKept():
                return self._contribution.kept(message)
            case m.Fetch() | m.Init() | m.Push() | m.HasPush() | m.Pull() | m.PushPart() | m.Handover():
                if self._is_succeeded:
                    return [Send(message.sender, m.NewView(view=self.view))]
                return self._mirror.pass_on(message, self._from_worker(message))
        raise ProtocolError(str(self.address), f"a shard does not expect {type(message).__name__}")

    def retry(self, now_s: float = 0.0) -> Effects:
        """Return what its backup has not confirmed; as a backup, whom it covers. Workers ask by themselves."""
        return self._mirror.again() + self._mirror.cover() + self._following.cover()

    def is_ready(self, now_s: float = 0.0) -> bool:
        """Return False: shards only answer."""
        return False

    def work(self, now_s: float = 0.0) -> Effects:
        """Return nothing: shards only answer."""
        return []

    def settle(self) -> Effects:
        """Return nothing: shards leave nothing for later."""
        return []

    # A backup

    def _on_news(self, news: m.NewView) -> Effects:
        """Adopt a view, and who follows this shard in it; one that has been succeeded says nothing any more."""
        if news.view.number <= self.view.number:
            return self._on_view(news.view) if self._serves else []
        if self.address not in news.view.servers:
            self._is_succeeded, self._serves = self._serves or self._is_succeeded, False
            self.view = news.view
            self._mirror.retire()
            return []
        if not self._serves:
            self._serves = True
            self._following.close(news.view.number)
        backup = news.view.backup_of(self.address)
        effects = self._on_view(news.view)
        if backup == self._mirror.backup:
            return self._mirror.pass_on(news, effects)
        return effects + self._mirror.appoint(backup, news.view.number, self._snapshot)

    def _hear(self, message: m.Message) -> None:
        """Do as the shard does that this one follows."""
        if isinstance(message, m.NewView):
            self._on_view(message.view)
        elif isinstance(message, m.Fetch | m.Init | m.Push | m.Pull | m.PushPart | m.Handover):
            self._from_worker(message)

    def _snapshot(self) -> list[bytes]:
        """Return all that this shard is, open rounds included."""
        parked = [plain(message) for message in self._parked]
        head = {"view": msgspec.to_builtins(self.view), "parked": parked}
        found = [packed(head)]
        for index, ledger in self.ledgers.items():
            block, parts = self.blocks.get(index), self._parts.get(index)
            state = {
                "index": index,
                "ledger": {**ledger.state_dict(), "open": ledger.open_state()},
                "block": None if block is None else block.state_dict(),
                "parts": None if parts is None else {**parts.state_dict(), "open": parts.open_state()},
            }
            found.append(packed(state))
        return found

    def _become(self, snapshot: Sequence[bytes]) -> None:
        """Be what another shard is."""
        head, *found = map(unpacked, snapshot)
        states = {state["index"]: state for state in found}
        self._load(
            {
                "view": head["view"],
                "blocks": {index: state["block"] for index, state in states.items() if state["block"] is not None},
                "ledgers": {index: state["ledger"] for index, state in states.items()},
                "parts": {index: state["parts"] for index, state in states.items() if state["parts"] is not None},
            }
        )
        for index, state in states.items():
            self.ledgers[index].load_open(state["ledger"]["open"])
            if state["parts"] is not None:
                self._parts[index].load_open(state["parts"]["open"])
        self._parked = [msgspec.convert(message, m.FromWorker, builtin_types=(bytes,)) for message in head["parked"]]

    def _account(self, life: int) -> m.Account:
        """Return what a new coordinator must know."""
        round = max((ledger.round for ledger in self.ledgers.values()), default=-1)
        given = self._contribution.given
        covered_by = self._mirror.backup if self._mirror.is_covered else None
        if self._following.leader is not None:
            covered_by = self.address
        return m.Account(
            sender=self.address,
            life=life,
            view=self.view,
            round=round,
            checkpoint=given,
            covered_by=covered_by,
            begun=max((ledger.begun for ledger in self.ledgers.values()), default=-1),
        )

    def _on_view(self, view: View) -> Effects:
        effects: Effects = [Send(COORDINATOR, m.ViewSeen(sender=self.address, number=view.number))]
        if view.number <= self.view.number:
            return effects
        if view.knobs.version != self.view.knobs.version:
            self._retune(view)
        self.view = view
        for index, ledger in self.ledgers.items():
            block = self.blocks.get(index)
            if block is not None:
                block.keep_only(view.everyone)
            effects += ledger.on_view(block, view)
            if index in self._parts and isinstance(block, ParameterBlock):
                effects += self._parts[index].close(block, view)
        parked, self._parked = self._parked, []
        for message in parked:
            effects += self._from_worker(message)
        return effects

    def _retune(self, view: View) -> None:
        self.spec = apply_knobs(self._submitted, view.knobs)
        for block in self.blocks.values():
            block.retune(self.spec)
        for parts in self._parts.values():
            parts.retune(self.spec)

    def _from_worker(self, message: m.FromWorker) -> Effects:
        if message.view > self.view.number:
            if len(self._parked) < _MAX_PARKED:
                self._parked.append(message)
            return []
        if message.view < self.view.number or message.sender not in self.view.here:
            return [Send(message.sender, m.NewView(view=self.view))]
        return [self._with_parts(effect) for effect in self._answer(message)]

    def _with_parts(self, effect: Effect) -> Effect:
        """Have a block's values say which means of its parts are in them."""
        if not isinstance(effect, Send) or not isinstance(effect.message, m.State):
            return effect
        parts = self._parts.get(effect.message.block)
        if parts is None:
            return effect
        return Send(effect.to, msgspec.structs.replace(effect.message, part_rounds=parts.newest))

    def _answer(self, message: m.FromWorker) -> Effects:
        ledger = self.ledgers.get(message.block)
        if ledger is None:
            ledger = self._new_ledger(message.block)
        if isinstance(message, m.Init):
            return self._on_init(message, ledger)
        block = self.blocks.get(message.block)
        if isinstance(message, m.Fetch):
            return ledger.on_fetch(message, block, self.view)
        if block is None:
            raise ProtocolError(str(self.address), f"{message.sender.spoken} speaks of a block without values")
        match message:
            case m.Push():
                if message.block in self._parts and isinstance(ledger, RoundLedger) and message.round > ledger.round:
                    self._parts[message.block].met()
                return ledger.on_push(message, block, self.view)
            case m.PushPart():
                return self._on_part(message, block)
            case m.HasPush():
                return ledger.on_question(message, block, self.view)
            case m.Pull():
                return ledger.on_pull(message, block, self.view)
            case m.Handover():
                return ledger.on_handover(message, block)

    def _on_part(self, push: m.PushPart, block: ServerBlock) -> Effects:
        if not isinstance(block, ParameterBlock) or not exchange_of(self.spec).averages_parts:
            raise ProtocolError(
                str(self.address), f"{push.sender.spoken} sends a part of what is not averaged in parts"
            )
        parts = self._parts.setdefault(push.block, PartLedger(self.spec, push.block))
        return parts.on_push(push, block, self.view)

    def _new_ledger(self, index: int) -> Ledger:
        kind: type[Ledger] = ArrivalLedger if pacing_of(self.spec).applies_on_arrival else RoundLedger
        ledger = self.ledgers[index] = kind(index, self.address, self._probe)
        return ledger

    def _on_init(self, message: m.Init, ledger: Ledger) -> Effects:
        if message.block not in self.blocks:
            content = Content(message.content)
            self.blocks[message.block] = make_block(self.spec, message.block, content, message.payload, self._means)
        return ledger.answer_fetches(self.blocks[message.block], self.view)

    def state_dict(self) -> dict[str, Any]:
        """Return everything this shard has said or promised; pushes of an open round are not promises."""
        return {
            "answer": msgspec.to_builtins(self._contribution.answer),
            "view": msgspec.to_builtins(self.view),
            "blocks": {index: block.state_dict() for index, block in self.blocks.items()},
            "ledgers": {index: ledger.state_dict() for index, ledger in self.ledgers.items()},
            "parts": {index: parts.state_dict() for index, parts in self._parts.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._contribution.answer = msgspec.convert(state.get("answer"), m.CheckpointPart | None, strict=False)
        self._serves = True
        self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        self.view = msgspec.convert(state["view"], View, strict=False)
        self.spec = apply_knobs(self._submitted, self.view.knobs) if self.view.number > 0 else self._submitted
        saved_blocks = state["blocks"].items()
        self.blocks = {index: load_block(self.spec, index, block, self._means) for index, block in saved_blocks}
        self.ledgers = {}
        for index, saved in state["ledgers"].items():
            self._new_ledger(index).load_state_dict(saved)
        self._parts = {}
        for index, saved in state.get("parts", {}).items():
            self._parts[index] = PartLedger(self.spec, index)
            self._parts[index].load_state_dict(saved)
