"""Activations and their gradients as messages between neighbours: encoded, kept until they are surely there, and sent
again when they are asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raysync.address import Address
from raysync.compress import Compressor, Identity, verbatim
from raysync.compress.registry import decode
from raysync.engine import messages as m
from raysync.engine.seeds import derive
from raysync.errors import PayloadError

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int64": torch.int64}
_EXACT = "exact"
"""How a message calls float32 that goes bit for bit though there is a codec: no codec takes what is not finite."""
_MAX_DIMENSIONS = 16


class Key(NamedTuple):
    """Which one."""

    step: int
    microbatch: int
    is_gradient: bool


class Part(NamedTuple):
    """A microbatch of a step: its samples, how many microbatches there are, and how many samples in all of them."""

    samples: tuple[int, ...]
    num_parts: int
    total: int

    @staticmethod
    def of(message: m.Activation) -> Part:
        """Return the part an activation is of."""
        return Part(message.samples, message.count, message.total)


_NO_PART = Part((), 0, 0)


class Parcels:
    """What a stage has sent and may be asked for again, and what it has been sent and not used yet."""

    def __init__(self, address: Address, seed: int, forward: Compressor, backward: Compressor) -> None:
        self._address, self._seed = address, seed
        self._codecs: dict[bool, Compressor] = {False: forward, True: backward}
        self._sent: dict[Key, m.Activation] = {}
        self._arrived: dict[Key, m.Activation] = {}
        self.bytes_sent = 0

    def pack(self, key: Key, life: int, tensor: Tensor, part: Part = _NO_PART) -> m.Activation:
        """Return a tensor as a message, kept for whoever asks again."""
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise PayloadError(f"a stage makes {name}; between stages go {', '.join(_DTYPES)}")
        codec = self._codecs[key.is_gradient]
        values = tensor.detach().reshape(-1)
        if name != "float32" or isinstance(codec, Identity):
            payload = verbatim.encode(values) if name == "float32" else _bytes(values)
        else:
            seed = derive(self._seed, "activation", self._address.stage, self._address.index, *map(int, key))
            try:
                payload = codec.encode(values, seed)
            except PayloadError:
                name, payload = _EXACT, verbatim.encode(values)
        message = m.Activation(
            sender=self._address,
            life=life,
            step=key.step,
            microbatch=key.microbatch,
            is_gradient=key.is_gradient,
            dtype=name,
            shape=tuple(tensor.shape),
            samples=part.samples,
            count=part.num_parts,
            total=part.total,
            payload=payload,
        )
        self._sent[key] = message
        self.bytes_sent += len(payload)
        return message

    def again(self, asked: m.SendAgain) -> m.Activation | None:
        """Return what was sent before, if it is still known."""
        return self._sent.get(Key(asked.step, asked.microbatch, asked.is_gradient))

    def arrived(self, message: m.Activation, first_step: int) -> None:
        """Keep what a neighbour sent until it is needed, unless its step is over."""
        if message.step >= first_step:
            self._arrived[Key(message.step, message.microbatch, message.is_gradient)] = message

    def has(self, key: Key) -> bool:
        """Return whether something has arrived."""
        return key in self._arrived

    def peek(self, key: Key) -> m.Activation | None:
        """Return what has arrived, as it came."""
        return self._arrived.get(key)

    def take(self, key: Key, device: str) -> Tensor:
        """Return what has arrived, on the device where it is used."""
        return unpack(self._arrived.pop(key), self._codecs[key.is_gradient]).to(device)

    def over(self, step: int) -> None:
        """Forget what was sent before a step: all neighbours have it."""
        self._sent = {key: message for key, message in self._sent.items() if key.step >= step}
        self._arrived = {key: message for key, message in self._arrived.items() if key.step >= step}

    def forget(self) -> None:
        """Forget everything."""
        self._sent, self._arrived = {}, {}


def unpack(message: m.Activation, codec: Compressor) -> Tensor:
    """Return the tensor a message carries; raise `PayloadError` unless it is one."""
    is_exact = message.dtype == _EXACT
    shape, dtype = message.shape, torch.float32 if is_exact else _DTYPES.get(message.dtype)
    if dtype is None or len(shape) > _MAX_DIMENSIONS or any(length < 0 for length in shape):
        raise PayloadError(f"an activation of {message.dtype} and shape {shape} is none")
    size = 1
    for length in shape:
        size *= length
    if dtype is not torch.float32:
        if len(message.payload) != size * dtype.itemsize:
            raise PayloadError(f"an activation of shape {shape} has {len(message.payload)} bytes")
        values = torch.frombuffer(bytearray(message.payload), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    elif is_exact or isinstance(codec, Identity):
        values = verbatim.decode(message.payload, size)
    else:
        values = decode(message.payload, size)
    return values.reshape(shape)


def _bytes(values: Tensor) -> bytes:
    return values.cpu().contiguous().view(torch.uint8).numpy().tobytes()
