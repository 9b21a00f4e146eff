"""A shard and the one that stands by for it: the backup hears all that its shard is told, in the same order, and so
comes to the same, bit for bit. What the shard says leaves once the backup has heard what it rests on.

So whatever was said is known to two processes. A shard that was taken for dead and is not falls silent by itself: its
backup follows it no more, and nothing of what it would say leaves.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from raysync.address import COORDINATOR, Address
from raysync.compress.wire import sealed
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send

Heard = m.Fetch | m.Init | m.Push | m.Pull | m.PushPart | m.Handover | m.NewView
"""What changes a shard."""


class Mirror:
    """The shard's side: copies what it hears, and holds what it says until that is heard."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.backup: Address | None = None
        self._life = 0
        self._number = self._heard = 0
        self._filled = self._owed = 0
        """The number with which the backup is filled; the last that something rests on which was said before that."""
        self._unheard: dict[int, list[m.Copy | m.Fill]] = {}
        """By number: what has not been confirmed."""
        self._held: deque[tuple[int, Effects]] = deque()

    @property
    def is_covered(self) -> bool:
        """Whether the backup knows all that was said."""
        return self.backup is not None and self._heard >= max(self._filled, self._owed)

    def appoint(self, backup: Address | None, life: int, snapshot: Callable[[], Sequence[bytes]]) -> Effects:
        """Be followed by another shard from now on, or by none: what was held for the last one may leave."""
        released = [effect for _, effects in self._held for effect in effects]
        self.backup, self._life = backup, life
        self._unheard, self._heard = {}, self._number
        self._held.clear()
        if backup is None:
            return released
        self._number += 1
        self._filled = self._owed = self._number
        parts = snapshot()
        self._unheard[self._number] = [
            m.Fill(sender=self._address, life=life, number=self._number, part=part, parts=len(parts), payload=payload)
            for part, payload in enumerate(parts)
        ]
        return released + self._said(self._number)

    def retire(self) -> None:
        """Another shard has taken its place: nothing that was held leaves."""
        self.backup, self._unheard = None, {}
        self._held.clear()

    def pass_on(self, message: m.Message, effects: Effects) -> Effects:
        """Return what may leave now that a message has been heard, and came to these effects."""
        if self.backup is None:
            return effects
        copied = self._copy(message) if isinstance(message, Heard) else []
        if self._heard < self._filled:
            self._owed = self._number
            return copied + effects
        if self._heard >= self._number or not effects:
            return copied + effects
        self._held.append((self._number, effects))
        return copied

    def copied(self, told: m.Copied) -> Effects:
        """Let go what was held for what the backup has heard now."""
        if told.sender != self.backup or told.life != self._life or told.number <= self._heard:
            return []
        was_covered = self.is_covered
        self._unheard = {number: said for number, said in self._unheard.items() if number > told.number}
        self._heard = told.number
        released: Effects = []
        while self._held and self._held[0][0] <= told.number:
            released += self._held.popleft()[1]
        return released + ([] if was_covered else self.cover())

    def cover(self) -> Effects:
        """Return the word that the backup knows all that was said, if so: to the coordinator, and to the backup, since
        the coordinator may not live to remember it.
        """
        if self.backup is None or not self.is_covered:
            return []
        covered = m.Covered(sender=self._address, backup=self.backup)
        return [Send(self.backup, covered), Send(COORDINATOR, covered)]

    def again(self) -> Effects:
        """Return what has not been confirmed."""
        return [effect for number in sorted(self._unheard) for effect in self._said(number)]

    def _copy(self, message: Heard) -> Effects:
        self._number += 1
        payload: bytes = getattr(message, "payload", b"")
        bare = msgspec.structs.replace(message, payload=b"") if payload else message
        copy = m.Copy(
            sender=self._address,
            life=self._life,
            number=self._number,
            heard=bare,
            payload=payload,
            covers=self.is_covered,
        )
        self._unheard[self._number] = [copy]
        return self._said(self._number)

    def _said(self, number: int) -> Effects:
        assert self.backup is not None
        return [Send(self.backup, message) for message in self._unheard[number]]


class Following:
    """The backup's side: hears copies in order, and says how far it has come."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._life = -1
        self._next: int | None = None
        """The number of the next copy; None until it has been filled."""
        self._parts: dict[int, bytes] = {}
        self._early: dict[int, m.Copy] = {}
        self.leader: Address | None = None
        """Whom it covers: it knows all that one has said."""
        self._follows: Address | None = None

    def close(self, life: int) -> None:
        """Follow no more: it serves itself."""
        self._begin(life)

    def cover(self) -> Effects:
        """Return the word that it knows all that its shard has said, if so: that one may not come to say it."""
        if self.leader is None:
            return []
        return [Send(COORDINATOR, m.Covered(sender=self.leader, backup=self._address))]

    def covered(self, told: m.Covered) -> None:
        """The shard it follows says that this one knows all."""
        if told.sender == self._follows:
            self.leader = told.sender

    def fill(self, fill: m.Fill, load: Callable[[Sequence[bytes]], None]) -> Effects:
        """Take in a part of what a shard is; with the last one, become the same."""
        if fill.life < self._life:
            return []
        if fill.life > self._life:
            self._begin(fill.life)
        if self._next is None:
            self._parts[fill.part] = fill.payload
            if len(self._parts) < fill.parts:
                return []
            load([self._parts[part] for part in range(fill.parts)])
            self._next, self._parts, self._follows = fill.number + 1, {}, fill.sender
        return self._told(fill.sender)

    def copy(self, copy: m.Copy, hear: Callable[[m.Message], object]) -> Effects:
        """Take in a copy, and hear all that is next."""
        if copy.life < self._life:
            return []
        if copy.life > self._life:
            self._begin(copy.life)
        self._early[copy.number] = copy
        while self._next is not None and self._next in self._early:
            following = self._early.pop(self._next)
            self._next += 1
            message = following.heard
            if following.payload:
                message = msgspec.structs.replace(message, payload=following.payload)
            hear(message)
            self.leader = following.sender if following.covers else self.leader
        if self._next is not None:
            self._early = {number: early for number, early in self._early.items() if number >= self._next}
        return self._told(copy.sender)

    def _begin(self, life: int) -> None:
        self._life, self._next, self._parts, self._early = life, None, {}, {}
        self.leader = self._follows = None

    def _told(self, to: Address) -> Effects:
        if self._next is None:
            return []
        return [Send(to, m.Copied(sender=self._address, life=self._life, number=self._next - 1))]


def packed(state: dict[str, Any]) -> bytes:
    """Return plain data with tensors as bytes."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpacked(data: bytes) -> dict[str, Any]:
    """Return what `packed` was given."""
    import torch

    with torch.serialization.safe_globals([bytes]):  # as which it names bytes of length 0
        state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return state


def plain(message: m.Message) -> dict[str, Any]:
    """Return a message as plain data that shares nothing with what arrived."""
    if hasattr(message, "payload"):
        message = msgspec.structs.replace(message, payload=sealed(message.payload))
    found: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    return found
