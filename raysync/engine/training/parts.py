"""A replica's side of sparse averaging: which part is sent, what it was when it was sent, and how the mean lands.

What travels is the difference between the replica's values and the mean it last saw of that part, so that whatever a
codec left out is part of the next difference: nothing has to be made up for. `visible` is that last mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysync.blocks import Block, Content
from raysync.compress import Compressor, Identity, verbatim
from raysync.compress.registry import decode
from raysync.engine import messages as m
from raysync.engine.seeds import derive
from raysync.engine.training.replica import Replica
from raysync.engine.training.shared_vector import SharedVector
from raysync.spec import JobSpec
from raysync.sync.async_sparse import AsyncSparse


@lru_cache(maxsize=4096)
def partition(seed: int, block: int, size: int, num_parts: int) -> tuple[Tensor, ...]:
    """Return the coordinates of each part of a block: fixed for the job, so that none is ever sent on the wire, and no
    coordinate is sent again before every other one has been.
    """
    generator = torch.Generator().manual_seed(derive(seed, "parts", block))
    order = torch.randperm(size, generator=generator)
    count = min(num_parts, size)
    return tuple(order[part::count].sort().values.int() for part in range(count))


class _Flight(NamedTuple):
    """A part on its way."""

    where: Tensor
    sent: Tensor
    """The replica's values when it was sent."""
    base: int
    """The round whose mean the difference is from; -1 for the values all began with."""
    payload: bytes
    extra: bytes


class Landed(NamedTuple):
    """What became of a mean."""

    delay: int
    is_dropped: bool


class Parts:
    """Flights of one replica, and the moving average of its displacement."""

    def __init__(self, spec: JobSpec, replica: Replica, shared: SharedVector) -> None:
        self._seed, self._replica, self._shared = spec.seed, replica, shared
        self._rates = torch.zeros_like(replica.flat)
        """E: how far a coordinate moves in a step."""
        self._touched = torch.zeros(len(replica.flat), dtype=torch.bool, device=replica.flat.device)
        self._flights: dict[tuple[int, int], _Flight] = {}
        """By round and block."""
        self._bases: dict[tuple[int, int], int] = {}
        """By block and part: the last round that has landed."""
        self._early: dict[tuple[int, int], m.PartMean] = {}

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks whose parts are averaged."""
        return (block for block in self._shared.blocks if block.content is Content.PARAMETER)

    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """Rounds and blocks whose mean has not come."""
        return sorted(self._flights)

    def start(self, spec: JobSpec, round: int, block: Block, codec: Compressor, seed: int) -> _Flight:
        """Return a round's part of a block as it is sent now."""
        number, where = self._part(spec, round, block)
        sent = self._replica.flat[where].clone()
        change = sent - self._shared.visible[where]
        payload = (Identity() if len(change) == 0 else codec).encode(change, seed)
        flight = _Flight(where, sent, self._bases.get((block.index, number), -1), payload, self._moments(where))
        self._flights[round, block.index] = flight
        return flight

    def abstain(self, spec: JobSpec, round: int, block: Block) -> None:
        """Send nothing this time; the mean of the others still comes."""
        _, where = self._part(spec, round, block)
        self._flights[round, block.index] = _Flight(where, where.new_empty(0).float(), -1, b"", b"")

    def again(self, round: int, block: int) -> _Flight:
        """Return what was sent."""
        return self._flights[round, block]

    def land(self, spec: JobSpec, mean: m.PartMean, step: int) -> list[Landed]:
        """Take in the mean of a round at a step, and those that came before an older one of the same part had; a mean
        that has been taken in changes nothing.
        """
        self._early[mean.round, mean.block] = mean
        landed = []
        for key in sorted(self._early):
            if key not in self._flights:
                del self._early[key]
            elif not self._is_overtaking(spec, *key):
                landed.append(self._land(spec, self._early.pop(key), step))
        return landed

    def _is_overtaking(self, spec: JobSpec, round: int, index: int) -> bool:
        """Return whether an older mean of the same part is still to come."""
        block = self._shared.blocks[index]
        part, _ = self._part(spec, round, block)
        older = [other for other, where in self._flights if where == index and other < round]
        return any(self._part(spec, other, block)[0] == part for other in older)

    def _land(self, spec: JobSpec, told: m.PartMean, step: int) -> Landed:
        round, block = told.round, self._shared.blocks[told.block]
        flight = self._flights.pop((round, block.index))
        strategy = spec.strategy
        assert isinstance(strategy, AsyncSparse)
        number, where = self._part(spec, round, block)
        visible, flat = self._shared.visible, self._replica.flat
        base, values = self._bases.get((block.index, number), -1), decode(told.payload, len(where)).to(visible.device)
        delay = step - round
        if told.newest >= 0:
            visible[where] = values
            self._bases[block.index, number] = max(base, told.newest)
            return Landed(delay, True)
        if round > base:
            visible[where] += values
            self._bases[block.index, number] = round
        if delay > strategy.staleness_bound or not flight.payload:
            return Landed(delay, True)
        mean = visible[where]
        if strategy.landing != "overwrite" and delay > 0:
            mean += delay * self._corrected(strategy.beta_at(step, spec.budget.steps), where, flight.sent, delay)
        flat[where] = mean
        if told.extra:
            self._load_moments(where, verbatim.decode(told.extra))
        return Landed(delay, False)

    def _corrected(self, beta: float, where: Tensor, sent: Tensor, delay: int) -> Tensor:
        rate = (self._replica.flat[where] - sent) / delay
        kept = torch.where(self._touched[where], torch.full_like(rate, beta), torch.zeros_like(rate))
        rate = kept * self._rates[where] + (1 - kept) * rate
        self._rates[where] = rate
        self._touched[where] = True
        return rate

    def _part(self, spec: JobSpec, round: int, block: Block) -> tuple[int, Tensor]:
        assert isinstance(spec.strategy, AsyncSparse)
        parts = partition(self._seed, block.index, block.size, spec.strategy.num_parts)
        number = round % len(parts)
        return number, (parts[number] + block.start).to(self._replica.flat.device)

    def _moments(self, where: Tensor) -> bytes:
        shared = self._elementwise_moments
        return verbatim.encode(torch.cat([moment[where] for moment in shared])) if shared else b""

    def _load_moments(self, where: Tensor, values: Tensor) -> None:
        for moment, found in zip(self._elementwise_moments, values.to(where.device).view(-1, len(where)), strict=True):
            moment[where] = found

    @property
    def _elementwise_moments(self) -> list[Tensor]:
        """The averaged moments that have a number for every parameter; counts of steps are each replica's own."""
        return [moment for moment in self._replica.shared_moments if moment.numel() == len(self._replica.flat)]

    def loaded(self, block: int, part_rounds: Mapping[int, int]) -> None:
        """The block's visible values were replaced: these means are in them already."""
        self._bases |= {(block, part): round for part, round in part_rounds.items()}

    def met(self) -> None:
        """All replicas are the same now, and what was in the air has landed."""
        self._flights, self._bases, self._early = {}, {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the moving average, and which means were seen: where states are saved nothing is in the air."""
        bases = [[*key, round] for key, round in sorted(self._bases.items())]
        return {"rates": self._rates.clone(), "touched": self._touched.clone(), "bases": bases}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._rates.copy_(state["rates"])
        self._touched.copy_(state["touched"])
        self.met()
        self._bases = {(block, part): round for block, part, round in state["bases"]}
