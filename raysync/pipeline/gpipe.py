"""`gpipe`: all forwards, then all backwards."""

from __future__ import annotations

from typing import Literal

from raysync.pipeline.base import Schedule


class GPipe(Schedule):
    """All forwards, then all backwards."""

    kind: Literal["gpipe"] = "gpipe"
