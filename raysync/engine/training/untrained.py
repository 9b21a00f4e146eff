"""What of a model is never trained nor averaged, and must still be the same on every worker: frozen parameters and
buffers that hold no floating-point numbers.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn


class Untrained:
    """The frozen parameters and integer buffers of a model, by name."""

    why_differs = (
        "the frozen parameters or integer buffers differ from rank 0's, and are too large to be sent; load the same "
        "weights on every worker before attach"
    )

    def __init__(self, model: nn.Module) -> None:
        frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        counts = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_floating_point()}
        self._tensors: dict[str, Tensor] = {**frozen, **counts}

    @property
    def size_bytes(self) -> int:
        """How much it is."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def values(self) -> dict[str, NDArray[np.uint8]]:
        """Return the bytes of every tensor."""
        return {name: _bytes(tensor) for name, tensor in self._tensors.items()}

    @cached_property
    def digest(self) -> str:
        """What two workers share only if all of it is equal."""
        digest = xxhash.xxh3_128()
        for name, tensor in sorted(self._tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            digest.update(_bytes(tensor).data)
        return digest.hexdigest()

    def load(self, values: dict[str, NDArray[np.uint8]]) -> None:
        """Take over the values of another worker's model."""
        for name, tensor in self._tensors.items():
            found = torch.from_numpy(values[name].copy()).view(tensor.dtype).view(tensor.shape)
            if not torch.equal(tensor, found):  # expanded ones cannot be written to
                tensor.data.copy_(found)


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    flat: NDArray[np.uint8] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat
