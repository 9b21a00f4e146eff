"""Error feedback: what a sender has not yet sent, block by block, until the receiver has acknowledged.

v = u + e; send c = encode(v); e = v - decode(c), computed from what the receiver will decode. The residual moves at
once, and the payload is kept until it is acknowledged: recalling it puts decode(c) back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from raysync.compress.in_place import Room
from raysync.compress.registry import add_checked
from raysync.compress.wire import sealed

if TYPE_CHECKING:
    from torch import Tensor

    from raysync.compress.base import Compressor

Key = tuple[int, str]
"""A block's index and the kind of payload: gradients and deltas have residuals of their own."""


class Pending(NamedTuple):
    """A push on its way."""

    round: int
    payload: bytes


class Feedback:
    """The residuals of one sender. With `enabled=False` nothing is kept: the control experiment."""

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._residual: dict[Key, Tensor] = {}
        self._pending: dict[Key, Pending] = {}
        self._rooms: dict[Key, Room] = {}
        self._norm: float | None = 0.0

    def squeeze(self, key: Key, round: int, update: Tensor, codec: Compressor, seed: int) -> bytes:
        """Return the payload for `update` plus what was left; asked again for the same round, return the same bytes."""
        pending = self._pending.get(key)
        if pending is not None and pending.round == round:
            return pending.payload
        if codec.lossless and (not self._enabled or key not in self._residual):
            payload = self._room(key).write(update)
        elif not self._enabled:
            payload = codec.encode(update, seed)
        else:
            payload = codec.squeeze(update, self._own(key, update), seed)
        self._pending[key], self._norm = Pending(round, payload), None
        return payload

    def commit(self, key: Key, round: int) -> None:
        """The receiver has applied this round's push: it cannot be recalled any more."""
        pending = self._pending.get(key)
        if pending is not None and pending.round == round:
            del self._pending[key]

    def recall(self, key: Key, like: Tensor) -> None:
        """The receiver never applied the pending push: what it held goes back into the residual."""
        pending = self._pending.pop(key, None)
        if pending is not None and self._enabled:
            add_checked(pending.payload, self._own(key, like))
            self._norm = None

    def hold_back(self, key: Key, update: Tensor) -> None:
        """Keep an update for the next push, all of it."""
        if self._enabled:
            self._own(key, update).add_(update)
            self._norm = None

    def withdraw(self, key: Key, update: Tensor) -> None:
        """The pending push was never sent, and the update in it is not to be: only what was left before is kept."""
        self.recall(key, update)
        if self._enabled:
            self._own(key, update).sub_(update)
            self._norm = None

    def forget(self, block: int) -> None:
        """Drop what was never sent of a block: its shard has it now."""
        self._residual = {key: rest for key, rest in self._residual.items() if key[0] != block}
        self._norm = None

    def is_pending(self, key: Key, round: int) -> bool:
        """Return whether this round's push is on its way: asked again, its bytes come back whatever the update."""
        return key in self._pending and self._pending[key].round == round

    def pending(self) -> dict[Key, int]:
        """Return the round of each push still on its way."""
        return {key: pending.round for key, pending in self._pending.items()}

    def residual(self, key: Key) -> Tensor | None:
        """Return what is left to send for a block, None for nothing."""
        return self._residual.get(key)

    def residuals(self) -> dict[Key, Tensor]:
        """Return all that is left to send."""
        return dict(self._residual)

    def norm(self) -> float:
        """Return the L2 norm of all residuals together; worked out only when they have changed."""
        if self._norm is None:
            self._norm = math.sqrt(sum(float(rest.norm()) ** 2 for rest in self._residual.values()))
        return self._norm

    def _room(self, key: Key) -> Room:
        if key not in self._rooms:
            self._rooms[key] = Room()
        return self._rooms[key]

    def _own(self, key: Key, like: Tensor) -> Tensor:
        if key not in self._residual:
            self._residual[key] = like.new_zeros(len(like))
        return self._residual[key]

    def state_dict(self) -> dict[str, Any]:
        """Return residuals and pushes on their way."""
        return {
            "residual": {_name(key): rest.clone() for key, rest in self._residual.items()},
            "pending": {_name(key): (sent.round, sealed(sent.payload)) for key, sent in self._pending.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._residual = {_key(name): rest.clone() for name, rest in state["residual"].items()}
        self._pending = {_key(name): Pending(*pending) for name, pending in state["pending"].items()}
        self._norm = None


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def _key(name: str) -> Key:
    index, payload_kind = name.split("/")
    return int(index), payload_kind
