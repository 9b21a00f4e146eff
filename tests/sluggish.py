"""A task whose model takes its time to be saved, and tells who does it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from torch import nn

from raysync.tasks import Digits

_SAVE_S = 4.0


class Sluggish(Digits):
    """Small, and slow to be saved; the process that saves leaves its number in a file."""

    hidden: tuple[int, ...] = (16,)
    mark: str

    def model(self) -> nn.Module:
        """Return a model that sleeps while its state is taken."""
        model = super().model()

        def take_time(*arguments: Any) -> None:
            with Path(self.mark).open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(_SAVE_S)

        model.register_state_dict_pre_hook(take_time)
        return model
