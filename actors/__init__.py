"""The Ray runtime: `fit` runs a job, `attach` makes a loop of your own semi-synchronous.

Importing this package imports neither ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.attach import Attached, attach
    from actors.fit import fit
    from actors.job import Job, submit
    from actors.result import Result

_HOMES = {
    "attach": "actors.attach",
    "Attached": "actors.attach",
    "fit": "actors.fit",
    "submit": "actors.job",
    "Job": "actors.job",
    "Result": "actors.result",
}

__all__ = ["Attached", "Job", "Result", "attach", "fit", "submit"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # a submodule of the same name must not take its place
    return value
