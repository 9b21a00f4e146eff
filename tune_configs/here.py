"""Things that stay in the process that runs a study."""

from __future__ import annotations

from typing import Any, Self


class Nothing:
    """What Tune's own files hold in place of such a thing."""


class StaysHere:
    """Neither copied nor saved: Tune does both to all it is given, and the study's store has it already."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Nothing], tuple[()]]:
        return Nothing, ()
