"""The axes of a study's parallel coordinates: where a value lies between the ends of its axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from raysync.study import Dimension


class Scale(NamedTuple):
    """One axis: some values one above the other, or a range."""

    words: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False

    @staticmethod
    def of(dimension: Dimension) -> Scale:
        """Return the axis of a dimension."""
        if dimension.choice is not None:
            return Scale(words=dimension.choice)
        return Scale(low=dimension.low or 0.0, high=dimension.high or 0.0, is_log=dimension.log)

    @staticmethod
    def around(values: Sequence[float], is_log: bool = False) -> Scale:
        """Return an axis that holds all these values."""
        return Scale(
            low=min(values, default=0.0), high=max(values, default=1.0), is_log=is_log and min(values, default=0) > 0
        )

    def place(self, value: Any) -> float:
        """Return where a value lies, 0 to 1."""
        if self.words:
            return self.words.index(value) / max(1, len(self.words) - 1)
        if self.high <= self.low:
            return 0.5
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (float(value) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """What to write beside the axis, and where."""
        if self.words:
            return [(self.place(word), str(word)) for word in self.words]
        ends = (self.low, self.high) if self.high > self.low else (self.low,)
        return [(self.place(end), f"{end:.3g}") for end in ends]
