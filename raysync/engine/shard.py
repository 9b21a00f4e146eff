"""The shard core: owns blocks, collects pushes, closes rounds exactly once, answers whoever asks late.

The host must make the state durable before it delivers what `handle` returned: what a shard has said, it still
knows after a restart. A push that was lost with the process was never acknowledged, and its worker sends it again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.compress import Identity
from raysync.compress.registry import check, decode
from raysync.control.view import NO_VIEW, View
from raysync.engine import messages as m
from raysync.engine.block import ServerBlock
from raysync.engine.ports import Keep, Probe, keep_nothing, no_probe
from raysync.errors import ProtocolError
from raysync.shard import Role
from raysync.spec import JobSpec

_REMEMBERED_ROUNDS = 3
"""A member is at most two rounds behind; one more for good measure. Leavers may be further behind."""
_MAX_PARKED = 10_000

ToShard = m.Fetch | m.Init | m.Push | m.Pull | m.Handover


class _Ledger:
    """What has happened to a block: the last round closed, the pushes of the next, who contributed when."""

    def __init__(self) -> None:
        self.round = -1
        self.participants: tuple[int, ...] | None = None
        """Who contributes to the open round; None while nobody has mentioned it."""
        self.pushes: dict[int, m.Push] = {}
        self.updates: dict[int, m.Update] = {}
        """Recent results by round; asynchronous: the last one by worker."""
        self.applied: dict[int, int] = {}
        self.handed: list[int] = []
        self.fetches: dict[int, m.Fetch] = {}
        self.fetched: dict[int, int] = {}
        """Asynchronous: the clock from which each worker started to look."""


class Shard:
    """One shard of the parameter server."""

    def __init__(self, shard: int, spec: JobSpec, *, probe: Probe = no_probe, keep: Keep = keep_nothing) -> None:
        self.id, self.address = shard, m.shard_address(shard)
        self.spec, self._probe, self._keep = spec, probe, keep
        self.view = NO_VIEW
        self.blocks: dict[int, ServerBlock] = {}
        self.ledgers: dict[int, _Ledger] = {}
        self._parked: list[ToShard] = []

    def handle(self, message: m.Message) -> list[m.Send]:
        """Take in a message and return what to say to it."""
        match message:
            case m.NewView():
                return self._on_view(message.view)
            case m.SnapshotRequest():
                self._keep(message.snapshot, self.address, self.state_dict())
                return [m.Send(m.COORDINATOR, m.SnapshotPart(snapshot=message.snapshot, sender=self.address))]
            case m.Fetch() | m.Init() | m.Push() | m.Pull() | m.Handover():
                return self._from_worker(message)
        raise ProtocolError(self.address, f"a shard does not expect {type(message).__name__}")

    def _on_view(self, view: View) -> list[m.Send]:
        sends = [m.Send(m.COORDINATOR, m.ViewSeen(shard=self.id, number=view.number))]
        if view.number <= self.view.number:
            return sends
        self.view = view
        for index, ledger in self.ledgers.items():
            ledger.fetches = {}
            ledger.handed = [worker for worker in ledger.handed if worker in view.everyone]
            if index in self.blocks:
                seen_by = self.blocks[index].seen_by
                self.blocks[index].seen_by = {
                    worker: seen for worker, seen in seen_by.items() if worker in view.everyone
                }
            if self.spec.strategy.asynchronous:
                ledger.updates = {worker: last for worker, last in ledger.updates.items() if worker in view.everyone}
            sends += self._try_close(index)
        parked, self._parked = self._parked, []
        for message in parked:
            sends += self._from_worker(message)
        return sends

    def _from_worker(self, message: ToShard) -> list[m.Send]:
        if message.view > self.view.number:
            if len(self._parked) < _MAX_PARKED:
                self._parked.append(message)
            return []
        if message.view < self.view.number or message.worker not in self.view.everyone:
            return [self._reply(message, m.NewView(view=self.view))]
        self.ledgers.setdefault(message.block, _Ledger())
        match message:
            case m.Init():
                return self._on_init(message)
            case m.Fetch():
                return self._on_fetch(message)
            case m.Push():
                return self._on_async_push(message) if self.spec.strategy.asynchronous else self._on_push(message)
            case m.Pull():
                return self._on_async_pull(message) if self.spec.strategy.asynchronous else self._on_pull(message)
            case m.Handover():
                return self._on_handover(message)

    # First values and newcomers

    def _on_init(self, message: m.Init) -> list[m.Send]:
        if message.block not in self.blocks:
            self.blocks[message.block] = ServerBlock(
                self.spec, message.block, Role(message.role), decode(message.payload)
            )
        return self._answer_fetches(message.block)

    def _on_fetch(self, message: m.Fetch) -> list[m.Send]:
        ledger = self.ledgers[message.block]
        ledger.fetches[message.worker] = message
        if message.block not in self.blocks:
            # The first member's values are everybody's: which of them asks first must not matter.
            is_first = message.worker == min(self.view.everyone)
            return [self._reply(message, m.NeedInit(block=message.block))] if is_first else []
        if self.spec.strategy.asynchronous:
            return self._answer_fetches(message.block)
        return self._catch_up(message) + self._answer_fetches(message.block)

    def _catch_up(self, fetch: m.Fetch) -> list[m.Send]:
        """Close what a newcomer waits for and nobody alive can contribute to; old hands bring up their rounds
        themselves.
        """
        ledger, sends = self.ledgers[fetch.block], []
        while ledger.round < fetch.round:
            before = ledger.round
            if not any(first <= before + 1 for first in self.view.first_rounds.values()):
                ledger.participants = ()
            elif before + 1 == fetch.round:
                ledger.participants = fetch.participants
            sends += self._try_close(fetch.block)
            if ledger.round == before:
                break
        return sends

    def _answer_fetches(self, index: int) -> list[m.Send]:
        ledger, sends = self.ledgers[index], []
        for worker, fetch in sorted(ledger.fetches.items()):
            if ledger.round >= fetch.round or self.spec.strategy.asynchronous:
                sends.append(self._reply(fetch, self._state(fetch)))
                del ledger.fetches[worker]
        return sends

    def _state(self, fetch: m.Fetch | m.Push | m.Pull) -> m.State:
        block, ledger = self.blocks[fetch.block], self.ledgers[fetch.block]
        if self.spec.strategy.asynchronous:
            if fetch.worker not in block.seen_by or ledger.fetched.get(fetch.worker) != fetch.round:
                block.seen_by[fetch.worker], ledger.fetched[fetch.worker] = block.x.clone(), fetch.round
            values, round = block.seen_by[fetch.worker], fetch.round
        else:
            values, round = block.y, ledger.round
        applied = ledger.applied.get(fetch.worker, -1)
        return m.State(
            view=self.view.number,
            block=fetch.block,
            round=round,
            payload=Identity().encode(values, 0),
            applied_round=applied,
        )

    # Synchronous rounds

    def _on_push(self, push: m.Push) -> list[m.Send]:
        ledger = self.ledgers[push.block]
        self._probe("shard.received")
        if push.round == ledger.round + 1:
            check(push.payload, len(self.blocks[push.block].x))
            ledger.pushes[push.worker] = push  # a retry brings the same bytes
        return self._open(push) or self._again(push)

    def _on_pull(self, pull: m.Pull) -> list[m.Send]:
        return self._open(pull) or self._again(pull)

    def _again(self, message: m.Push | m.Pull) -> list[m.Send]:
        """Repeat the result of a round to somebody who has missed it, or the whole block to who is too far behind."""
        ledger = self.ledgers[message.block]
        if message.round > ledger.round:
            return []
        return [self._reply(message, ledger.updates.get(message.round) or self._state(message))]

    def _open(self, message: m.Push | m.Pull) -> list[m.Send]:
        """Take note of the round a message belongs to, and close it if it can be closed."""
        ledger = self.ledgers[message.block]
        if message.round <= ledger.round:
            return []
        if message.round != ledger.round + 1:
            raise ProtocolError(
                self.address,
                f"block {message.block} is at round {ledger.round}, worker {message.worker} is at {message.round}",
            )
        ledger.participants = message.participants
        return self._try_close(message.block)

    def _try_close(self, index: int) -> list[m.Send]:
        """Close the open round once everybody still here has pushed; what was pushed counts even if its sender has
        died since.
        """
        ledger = self.ledgers[index]
        if ledger.participants is None or index not in self.blocks:
            return []
        round = ledger.round + 1
        if not self.view.contributors(ledger.participants, round) <= {*ledger.pushes}:
            return []
        update = self.blocks[index].aggregate(ledger.pushes, round)
        ledger.applied.update(dict.fromkeys(ledger.pushes, round))
        ledger.round, ledger.participants = round, None
        # Who contributes to a round has seen the one before; only others may still ask for older results.
        is_known_to_all = {*self.view.everyone} <= {*ledger.pushes}
        remembered = 1 if is_known_to_all else _REMEMBERED_ROUNDS
        ledger.updates = {r: u for r, u in (ledger.updates | {round: update}).items() if r > round - remembered}
        ledger.pushes = {}
        self._probe("shard.closed")
        sends = [m.Send(m.worker_address(worker), update) for worker in self.view.everyone]
        return sends + self._answer_fetches(index)

    # Asynchronous strategies

    def _on_async_push(self, push: m.Push) -> list[m.Send]:
        ledger = self.ledgers[push.block]
        self._probe("shard.received")
        if push.round > ledger.applied.get(push.worker, -1):
            self.blocks[push.block].absorb(push, len(self.view.members))
            ledger.applied[push.worker] = push.round
            self._probe("shard.closed")
        return [self._reply(push, m.Ack(block=push.block, round=push.round))]

    def _on_async_pull(self, pull: m.Pull) -> list[m.Send]:
        ledger, block = self.ledgers[pull.block], self.blocks[pull.block]
        if pull.worker not in block.seen_by:
            return []
        last = ledger.updates.get(pull.worker)
        if last is None or last.round < pull.round:
            last = ledger.updates[pull.worker] = block.difference(pull)
        return [self._reply(pull, last)] if last.round == pull.round else []

    # Leavers

    def _on_handover(self, handover: m.Handover) -> list[m.Send]:
        ledger = self.ledgers[handover.block]
        if handover.worker not in ledger.handed:
            self.blocks[handover.block].inherit(handover)
            ledger.handed.append(handover.worker)
        return [self._reply(handover, m.Ack(block=handover.block, round=ledger.round))]

    def _reply(self, message: ToShard, answer: m.Message) -> m.Send:
        return m.Send(m.worker_address(message.worker), answer)

    def state_dict(self) -> dict[str, Any]:
        """Return everything this shard has said or promised; pushes of an open round are not promises."""
        return {
            "view": msgspec.to_builtins(self.view),
            "blocks": {index: block.state_dict() for index, block in self.blocks.items()},
            "ledgers": {
                index: {
                    "round": ledger.round,
                    "updates": {
                        key: msgspec.to_builtins(update, builtin_types=(bytes,))
                        for key, update in ledger.updates.items()
                    },
                    "applied": dict(ledger.applied),
                    "handed": list(ledger.handed),
                    "fetched": dict(ledger.fetched),
                }
                for index, ledger in self.ledgers.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.view = msgspec.convert(state["view"], View)
        self.blocks = {
            index: ServerBlock.from_state(self.spec, index, block) for index, block in state["blocks"].items()
        }
        self.ledgers = {}
        for index, saved in state["ledgers"].items():
            ledger = self.ledgers[index] = _Ledger()
            ledger.round, ledger.applied, ledger.handed = saved["round"], dict(saved["applied"]), list(saved["handed"])
            ledger.fetched = dict(saved["fetched"])
            ledger.updates = {
                key: msgspec.convert(update, m.Update, builtin_types=(bytes,))
                for key, update in saved["updates"].items()
            }
