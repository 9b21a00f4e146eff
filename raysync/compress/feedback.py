"""Error feedback: what a sender has not yet sent, block by block, kept until the receiver has acknowledged.

v = u + e; send c = encode(v); e = v - decode(c), the residual computed from what the receiver will decode.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from raysync.compress.base import Compressor

Key = tuple[int, str]
"""A block's index and the kind of payload: gradients and deltas have residuals of their own."""


class Pending(NamedTuple):
    """A push on its way."""

    round: int
    payload: bytes
    residual: Tensor | None
    """The residual once the push is acknowledged; None for zero."""


class Feedback:
    """The residuals of one sender. With `enabled=False` nothing is kept: the control experiment."""

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._residual: dict[Key, Tensor] = {}
        self._pending: dict[Key, Pending] = {}

    def squeeze(self, key: Key, round: int, update: Tensor, codec: Compressor, seed: int) -> bytes:
        """Return the payload for `update` plus what was left; asked again for the same round, return the same bytes."""
        pending = self._pending.get(key)
        if pending is not None and pending.round == round:
            return pending.payload
        old = self._residual.get(key)
        compensated = update if old is None else update + old
        payload = codec.encode(compensated, seed)
        rest = None if codec.lossless or not self._enabled else compensated - codec.decode(payload)
        self._pending[key] = Pending(round, payload, rest)
        return payload

    def commit(self, key: Key, round: int) -> None:
        """The receiver has applied this round's push: its residual becomes the residual."""
        pending = self._pending.get(key)
        if pending is None or pending.round != round:
            return
        del self._pending[key]
        self._store(key, pending.residual)

    def recall(self, key: Key, codec: Compressor) -> None:
        """The receiver never applied the pending push: what it held goes back into the residual."""
        pending = self._pending.pop(key, None)
        if pending is None or not self._enabled:
            return
        sent = codec.decode(pending.payload)
        self._store(key, sent if pending.residual is None else pending.residual + sent)

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
        """Return the L2 norm of all residuals together."""
        return math.sqrt(sum(float(rest.double().square().sum()) for rest in self._residual.values()))

    def _store(self, key: Key, residual: Tensor | None) -> None:
        if residual is None:
            self._residual.pop(key, None)
        else:
            self._residual[key] = residual

    def state_dict(self) -> dict[str, Any]:
        """Return residuals and pushes on their way."""
        return {
            "residual": {_name(key): rest.clone() for key, rest in self._residual.items()},
            "pending": {
                _name(key): (p.round, p.payload, None if p.residual is None else p.residual.clone())
                for key, p in self._pending.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._residual = {_key(name): rest.clone() for name, rest in state["residual"].items()}
        self._pending = {_key(name): Pending(*pending) for name, pending in state["pending"].items()}


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def _key(name: str) -> Key:
    index, payload_kind = name.split("/")
    return int(index), payload_kind
