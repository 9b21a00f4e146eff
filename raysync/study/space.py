"""The space a study searches: fields of a job by their dotted paths, and what each may be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from raysync.value import Value

Point = dict[str, Any]
"""Values by path."""


class Dimension(Value):
    """What one field may be: one of several values, or anything between two."""

    choice: tuple[Any, ...] | None = Field(default=None, max_length=200)
    """The values it may have."""
    low: float | None = Field(default=None, allow_inf_nan=False)
    high: float | None = Field(default=None, allow_inf_nan=False)
    log: bool = False
    """Whether ratios count, not differences: 0.001 to 0.01 is searched as thoroughly as 0.01 to 0.1."""
    whole: bool = False
    """Whether it is a whole number."""
    when: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Only where these other fields have one of these values."""

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        is_range = self.low is not None and self.high is not None
        if (self.choice is None) != is_range or (self.choice is not None and self.low is not self.high):
            raise ValueError("give either `choice`, or `low` and `high`")
        if self.choice is not None and not self.choice:
            raise ValueError("`choice` is empty; name at least one value")
        if self.low is not None and self.high is not None:
            if self.low >= self.high:
                raise ValueError(f"low={self.low:g} must be below high={self.high:g}")
            if self.log and self.low <= 0:
                raise ValueError(f"log: true needs low > 0, not {self.low:g}")
        return self

    def is_active(self, point: Mapping[str, Any]) -> bool:
        """Return whether the field is there at all, given the values chosen so far."""
        return all(point.get(path) in values for path, values in self.when.items())

    @property
    def corners(self) -> Sequence[Any]:
        """The values to try before a study begins: all choices, or both ends."""
        if self.choice is not None:
            return self.choice
        ends = (self.low, self.high)
        return [int(end or 0) for end in ends] if self.whole else [end for end in ends if end is not None]


Space = dict[str, Dimension]


def ordered(space: Mapping[str, Dimension]) -> list[str]:
    """Return the paths so that what others depend on comes before them; raise `ValueError` for a circle."""
    found: list[str] = []
    left = dict(space)
    while left:
        free = [path for path, dimension in left.items() if not any(needed in left for needed in dimension.when)]
        if not free:
            raise ValueError(f"`when` of {', '.join(left)} depend on each other")
        for path in free:
            found.append(path)
            del left[path]
    return found


def draw(space: Mapping[str, Dimension], suggest: Callable[[str, Dimension], Any]) -> Point:
    """Return a point, with every value that is there suggested."""
    point: Point = {}
    for path in ordered(space):
        if space[path].is_active(point):
            point[path] = suggest(path, space[path])
    return point


def corner(space: Mapping[str, Dimension], path: str, value: Any) -> Point:
    """Return a point where one field has a value, what it depends on fits, and all others are what they are first."""
    wanted = {path: value, **{other: found[0] for other, found in space[path].when.items()}}
    return draw(space, lambda name, dimension: wanted.get(name, dimension.corners[0]))


def with_point(
    base: Mapping[str, Any], point: Mapping[str, Any], kind_of: Callable[[str], str | None] = lambda _: None
) -> dict[str, Any]:
    """Return a job with the fields of a point. Another `kind` clears away the fields of the one before; a part that the
    job does not spell out is of the kind that `kind_of` its path is.
    """
    job: dict[str, Any] = copy.deepcopy(dict(base))
    for path in sorted(point, key=lambda path: (not path.endswith("kind"), path.count("."))):
        *parents, field = path.split(".")
        part = job
        for depth, parent in enumerate(parents, 1):
            if not isinstance(part.get(parent), dict):
                kind = kind_of(".".join(parents[:depth]))
                part[parent] = {} if kind is None else {"kind": kind}
            part = part[parent]
        if field == "kind" and part.get("kind") != point[path]:
            part.clear()
        part[field] = point[path]
    return job
