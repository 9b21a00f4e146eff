"""An auditor beside the simulator: watches every push and every round, and proves that nothing was lost or doubled.

Worker side, for each worker and block, in fp64:

    sum of all updates it ever offered  ==  sum of decode(c) of its applied pushes  +  what it still holds

where a dead worker takes along what it held when it died. Server side, with plain SGD on the server:

    every round moves x by exactly the mean of its pushes, and starts bit for bit where the last one ended
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from raysync.address import Address
from raysync.blocks import Content
from raysync.compress import verbatim
from raysync.compress.registry import decode
from raysync.engine import messages as m
from raysync.engine.core import Core
from raysync.engine.effects import Effects, Send
from raysync.engine.server.averaged import AveragedBlock, minus
from raysync.engine.server.block import ParameterBlock, ServerBlock
from raysync.engine.server.shard import Shard
from raysync.engine.training.replica import Replica
from raysync.engine.worker import Worker
from raysync.sim import SimResult, Simulation

Account = tuple[Address, int, str]
"""Worker, block, kind of payload."""


class Closed(NamedTuple):
    """One round of a block (asynchronous: one push) as the server applied it."""

    pushes: dict[Address, m.Push]
    before: Tensor
    after: Tensor
    expected: Tensor
    """Where plain SGD on the server must have taken x, in fp64."""


class AuditedSimulation(Simulation):
    """A simulation that keeps the books."""

    def __init__(self, *arguments: Any, **world: Any) -> None:
        self.offered: dict[Account, dict[int, Tensor]] = defaultdict(dict)
        self.closed: dict[tuple[int, int, Address | None], Closed] = {}
        """By block, round and asynchronous worker (else None)."""
        self._unsaved: dict[tuple[int, int, Address | None], Closed] = {}
        self._unconfirmed: dict[Address, dict[tuple[int, int, Address | None], Closed]] = {}
        """By shard: what its backup may not have applied yet."""
        self.payloads: dict[tuple[Address, int, int, str], bytes] = {}
        self.estates: dict[Account, tuple[Tensor | None, tuple[int, bytes] | None]] = {}
        """A dead worker's residual, and the push that was on its way."""
        self.handed: dict[Account, Tensor] = {}
        super().__init__(*arguments, **world, on_send=self._watch)

    # Watching

    def _made(self, address: Address) -> Core:
        core = super()._made(address)
        if not isinstance(core, Worker):
            return core
        squeeze = core.shared.feedback.squeeze

        def watched(key: tuple[int, str], round: int, update: Tensor, *rest: Any) -> bytes:
            self.offered[address, key[0], key[1]].setdefault(round, update.double().clone())
            return squeeze(key, round, update, *rest)

        core.shared.feedback.squeeze = watched  # type: ignore[method-assign]
        hold_back = core.shared.feedback.hold_back

        def held_back(key: tuple[int, str], update: Tensor) -> None:
            offers = self.offered[address, key[0], key[1]]
            offers[-2_000_000_000 - len(offers)] = update.double().clone()
            hold_back(key, update)

        core.shared.feedback.hold_back = held_back  # type: ignore[method-assign]
        forget = core.round.forget

        def forgetting() -> None:
            assert core._welcome is not None
            self._begin_anew(address, core._welcome.round)
            forget()

        core.round.forget = forgetting  # type: ignore[method-assign]
        return core

    def _watch(self, sender: Address, send: Send) -> None:
        message = send.message
        if isinstance(message, m.Push):
            key = (message.sender, message.block, message.round, message.payload_kind)
            assert self.payloads.setdefault(key, message.payload) == message.payload, f"a retry of {key} differs"
        if isinstance(message, m.Handover):
            for kind, payload in message.payloads.items():
                self.handed[message.sender, message.block, kind] = decode(payload).double()

    def _begin_anew(self, worker: Address, round: int) -> None:
        """A worker joins: later rounds are new to it, though one that nobody else had heard of may have had the number."""
        self.payloads = {key: sent for key, sent in self.payloads.items() if key[0] != worker or key[2] <= round}
        for account in [account for account in self.offered if account[0] == worker]:
            offers = self.offered[account]
            for later in [number for number in offers if number > round]:
                offers[-len(offers) - 1_000_000 - later] = offers.pop(later)

    def kill(self, address: Address, down_s: float = 0.3) -> None:
        core = self.cores.get(address)
        if isinstance(core, Worker):
            self._bury(core)
        super().kill(address, down_s)

    def _is_dispensable(self, first: Address, lost: dict[Address, Shard]) -> bool:
        is_dispensable = super()._is_dispensable(first, lost)
        for address in lost:
            unconfirmed = self._unconfirmed.pop(address, {})
            self.closed |= {} if is_dispensable else unconfirmed
        return is_dispensable

    def _bury(self, core: Worker) -> None:
        feedback = core.shared.feedback
        state = feedback.state_dict()
        for worker, block, kind in [key for key in self.offered if key[0] == core.address]:
            residual = feedback.residual((block, kind))
            pending = state["pending"].get(f"{block}/{kind}")
            self.estates[worker, block, kind] = (None if residual is None else residual.clone(), pending)

    def act(self, core: Core, action: Callable[[], Effects]) -> None:
        self._unsaved = {}
        super().act(core, action)

    def secure(self, core: Core, effects: Effects) -> None:
        """Count what a shard has applied only once it is durable, or its backup has applied it: what a crash undoes never
        happened.
        """
        saved = self._durable.get(core.address)
        try:
            super().secure(core, effects)
        finally:
            if self._durable.get(core.address) is not saved or not self._faulty:
                self._count(core)

    def _count(self, core: Core) -> None:
        if isinstance(core, Shard) and core.is_covered:
            self._unconfirmed.setdefault(core.address, {}).update(self._unsaved)
            return
        self.closed |= self._unconfirmed.pop(core.address, {})
        self.closed |= self._unsaved

    def run(self) -> SimResult:
        with contextlib.ExitStack() as watching:
            for kind in (ParameterBlock, AveragedBlock):
                watching.enter_context(mock.patch.object(kind, "aggregate", self._watched_aggregate(kind.aggregate)))
                watching.enter_context(mock.patch.object(kind, "absorb", self._watched_absorb(kind.absorb)))
            return super().run()

    def _watched_aggregate(self, aggregate: Callable[..., m.Update]) -> Callable[..., m.Update]:
        def watched(block: ServerBlock, pushes: dict[Address, m.Push], round: int) -> m.Update:
            before, expected = block.x.clone(), self._expected(block, pushes)
            update = aggregate(block, pushes, round)
            self._unsaved[block.index, round, None] = Closed(dict(pushes), before, block.x.clone(), expected)
            return update

        return watched

    def _watched_absorb(self, absorb: Callable[..., None]) -> Callable[..., None]:
        def watched(block: ServerBlock, push: m.Push, num_workers: int) -> None:
            before, expected = block.x.clone(), self._expected(block, {push.sender: push}, 1 / num_workers)
            absorb(block, push, num_workers)
            self._unsaved[block.index, push.round, push.sender] = Closed(
                {push.sender: push}, before, block.x.clone(), expected
            )

        return watched

    def _expected(self, block: ServerBlock, pushes: dict[Address, m.Push], share: float = 1.0) -> Tensor:
        total = sum(push.weight for push in pushes.values())
        if isinstance(block, AveragedBlock):
            values = [verbatim.decode(push.payload).double() * (push.weight / total) for push in pushes.values()]
            if not values or share == 1:
                return sum(values) if values else block.x.double()
            return block.x.double() * (1 - share) + share * sum(values)
        mean = torch.zeros_like(block.x, dtype=torch.float64)
        for push in pushes.values():
            mean += decode(push.payload).double() * (push.weight / total) * share
        kind = next((push.payload_kind for push in pushes.values()), "displacement")
        mean += block._legacy.get(kind, torch.zeros_like(block.x)).double()
        lr = next((push.lr for push in pushes.values()), 0.0)
        return block.x.double() + mean * (-lr if self.spec.strategy.needs.exchange != "displacement" else 1.0)

    # Proving

    def check(self, tolerance: float = 2e-5) -> None:
        """Raise unless every account balances."""
        for address in self.coordinator.view.servers:
            self.closed |= self._unconfirmed.pop(address, {})
        for worker in self.workers.values():
            if worker.address not in self.coordinator.view.members:
                self._bury(worker)  # declared dead while alive, and the job ended before it was back; or it has left
        sent: dict[Account, dict[int, Tensor]] = defaultdict(dict)
        for (block, round, _), closed in self.closed.items():
            for worker, push in closed.pushes.items() if block in self._parameter_blocks else ():
                sent[worker, block, push.payload_kind][round] = decode(push.payload).double()
        for account, offers in self.offered.items():
            offered, applied = sum(offers.values()), sum(sent[account].values())
            held = self._held(account, sent[account])
            worst = float((offered - applied - held).abs().max())
            scale = max(1.0, *(float(offer.abs().max()) for offer in offers.values()))
            assert worst <= tolerance * scale * len(offers), f"{account}: {worst} neither applied nor held"
        self._check_servers(tolerance)

    def _held(self, account: Account, sent: dict[int, Tensor]) -> Tensor | float:
        worker, block, kind = account
        if account in self.estates:
            residual, pending = self.estates[account]
            if pending is not None and pending[0] not in sent:
                return decode(pending[1]).double() + (0.0 if residual is None else residual.double())
        else:
            feedback = self.workers[worker.index].shared.feedback
            assert (block, kind) not in feedback.pending(), f"{account} ended with a push on its way"
            residual = feedback.residual((block, kind))
        if residual is None:
            return self.handed.get(account, 0.0)  # forgotten by a leaver once a shard answers for it
        return residual.double()

    @property
    def _parameter_blocks(self) -> set[int]:
        return {block.index for block in self._blocks() if block.content is Content.PARAMETER}

    def _check_servers(self, tolerance: float) -> None:
        is_plain = not self.spec.server_optimizer.active_moments and self.spec.compression.error_feedback
        exchange = self.spec.strategy.needs.exchange
        for shard in [shard for shard in self.shards.values() if shard.address in self.coordinator.view.servers]:
            for index, block in shard.blocks.items():
                history = [closed for key, closed in sorted(self.closed.items()) if key[0] == index]
                is_averaged = isinstance(block, AveragedBlock)
                exact = is_averaged or (is_plain and exchange not in ("relayed_gradient", "sparse_parts"))
                for closed in history if exact else ():
                    worst = float(minus(closed.after.double(), closed.expected).abs().max())
                    finite = closed.after[closed.after.isfinite()].abs()
                    scale = max(1.0, float(finite.max()) if len(finite) else 1.0)
                    assert worst <= tolerance * scale, f"block {index}: {worst} off"
                if self.spec.strategy.needs.pacing != "bounded":
                    rounds = sorted(key[1] for key in self.closed if key[0] == index)
                    assert rounds == list(range(shard.ledgers[index].round + 1)), f"block {index} closed {rounds}"
                    if exchange == "sparse_parts" and not is_averaged:
                        continue  # between two rounds means of parts land
                    ends = [*(closed.after for closed in history)]
                    starts = [*(closed.before for closed in history[1:]), block.x]
                    assert all(torch.equal(a, b) for a, b in zip(ends, starts, strict=True)), f"block {index} has a gap"
                elif is_plain and not is_averaged:
                    self._check_sum(block, history, tolerance)

    def _check_sum(self, block: ParameterBlock, history: list[Closed], tolerance: float) -> None:
        """Asynchronous pushes have no order of their own: their sum must explain where x has come to."""
        stretch = slice(*next((b.start, b.stop) for b in self._blocks() if b.index == block.index))
        start = Replica(self.spec, self.workload).flat[stretch].double()
        moved = sum(closed.expected - closed.before.double() for closed in history)
        worst = float((block.x.double() - start - moved).abs().max())
        assert worst <= tolerance * max(1.0, float(start.abs().max())) * len(history), (
            f"block {block.index}: {worst} off"
        )

    def _blocks(self) -> Any:
        return next(iter(self.workers.values())).shared.blocks
