"""Searches over job specifications with Ray Tune: one YAML file per search here, a user's own anywhere else.

`load` finds a search by its name or file, `study.Study` runs it.
"""

from __future__ import annotations

from pathlib import Path

from raysync.errors import FieldProblem, SpecError
from raysync.study import StudySpec, read_study

_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Return the searches that come with raysync."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load(name: str) -> StudySpec:
    """Return the search of that name, or the one in that file; raise `SpecError` if there is neither."""
    if name in names():
        return read_study(_FOLDER / f"{name}.yaml")
    if not Path(name).exists():
        known = f"is neither a file nor a search that comes with raysync ({', '.join(names())})"
        raise SpecError((FieldProblem(name, None, known),), "the study")
    return read_study(Path(name))
