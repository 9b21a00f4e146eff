"""The Ray runtime: `fit` runs a job, `submit` starts one, `attach` makes a loop of your own semi-synchronous.

`api` has what people call, `job` the controller and what it works with, `shell` one actor class per role, `link` how
they reach each other, `storage` what outlives them, `gateway` the process a service asks. Importing this package
imports neither ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.api.attach import attach
    from actors.api.attached import Attached
    from actors.api.fit import fit
    from actors.api.job import Job, submit
    from actors.api.result import Result

_HOMES = {
    "attach": "actors.api.attach",
    "Attached": "actors.api.attached",
    "fit": "actors.api.fit",
    "submit": "actors.api.job",
    "Job": "actors.api.job",
    "Result": "actors.api.result",
}

__all__ = ["Attached", "Job", "Result", "attach", "fit", "submit"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # a submodule of the same name must not take its place
    return value
