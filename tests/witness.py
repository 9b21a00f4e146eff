"""A task that writes down which models it is given to judge: whoever judges the same rounds writes the same."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.models import Regression


class Witness(Regression):
    """Each process has a file of its own in a folder, with a line for every model it has judged."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / f"{os.getpid()}.seen"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 256), nn.Tanh(), nn.Linear(256, 1))

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the loss, and leave the digest of the model."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
        with self._path.open("a") as file:
            file.write(digest + "\n")
        return {"loss": self.loss(model, batch)}
