"""A member between the steps that all decide about: it starts a round of its parts at every step, and goes on."""

from __future__ import annotations

from typing import Any

from raysync.address import Address
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.seeds import derive
from raysync.engine.training.parts import Parts
from raysync.engine.training.replica import Replica
from raysync.engine.training.shared_vector import SharedVector
from raysync.spec import JobSpec
from raysync.sync.async_sparse import AsyncSparse


class FreeRun:
    """Sends parts, lets their means land, and counts both."""

    def __init__(self, address: Address, spec: JobSpec, replica: Replica, shared: SharedVector) -> None:
        self._address, self._shared = address, shared
        self.parts = Parts(spec, replica, shared)
        self.bytes_up = self.bytes_down = self.dense_bytes = 0
        self.landed = self.dropped = self.delays = 0

    def start(self, spec: JobSpec, view: View, step: int) -> Effects:
        """Return what this member sends in the round of a step; nothing where it is alone. With too many rounds in the
        air it abstains: the line is slower than training.
        """
        strategy = spec.strategy
        assert isinstance(strategy, AsyncSparse)
        if len(view.members) == 1:
            return []
        bound = max(1, strategy.staleness_bound)
        late = [key for key in self.parts.in_flight if step - key[0] >= bound and (step - key[0]) % bound == 0]
        sends: Effects = [self._push(view, *key) for key in late]  # lost on the way, perhaps
        in_air = len({round for round, _ in self.parts.in_flight})
        for block in self.parts.blocks:
            if in_air > strategy.staleness_bound:
                self.parts.abstain(spec, step, block)
            else:
                codec = spec.compression.push_codec(step, 4 * block.size)
                seed = derive(spec.seed, "push part", self._address.stage, self._address.index, step, block.index)
                self.bytes_up += len(self.parts.start(spec, step, block, codec, seed).payload)
            self.dense_bytes += 2 * 4 * block.size
            sends.append(self._push(view, step, block.index))
        return sends

    def again(self, view: View) -> Effects:
        """Return again what has not landed; a shard that has it answers with the mean, or not yet."""
        return [self._push(view, round, block) for round, block in self.parts.in_flight]

    def land(self, spec: JobSpec, mean: m.PartMean, step: int) -> None:
        """Take in a mean at a step."""
        landed = self.parts.land(spec, mean, step)
        if landed:
            self.bytes_down += len(mean.payload)
        for found in landed:
            self.landed += not found.is_dropped
            self.dropped += found.is_dropped
            self.delays += 0 if found.is_dropped else found.delay

    def metrics(self) -> dict[str, float]:
        """Return what has been sent and has landed so far."""
        return {
            "comm/bytes_up": float(self.bytes_up),
            "comm/bytes_down": float(self.bytes_down),
            "comm/dense_bytes": float(self.dense_bytes),
            "sparse/landed": float(self.landed),
            "sparse/dropped": float(self.dropped),
            "sparse/delay": self.delays / max(1, self.landed),
        }

    def _push(self, view: View, round: int, block: int) -> Send:
        flight = self.parts.again(round, block)
        push = m.PushPart(
            view=view.number,
            sender=self._address,
            block=block,
            round=round,
            base=flight.base,
            payload=flight.payload,
            extra=flight.extra,
        )
        return Send(view.servers[self._shared.owners[block]], push)

    def state_dict(self) -> dict[str, Any]:
        """Return the correction and the counts."""
        counts = [self.bytes_up, self.bytes_down, self.dense_bytes, self.landed, self.dropped, self.delays]
        return {"parts": self.parts.state_dict(), "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.parts.load_state_dict(state["parts"])
        self.bytes_up, self.bytes_down, self.dense_bytes, self.landed, self.dropped, self.delays = state["counts"]
