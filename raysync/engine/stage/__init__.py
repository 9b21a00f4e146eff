"""A pipeline stage: a member that computes a part of the model, one pass at a time (`stage`), by a plan (`line`).

How the model is cut (`cutting`), what first and last stage need of the task (`feed`), the passes themselves (`passes`)
and the weights they use (`stash`), what goes between neighbours (`parcels`), what is shown and saved (`showing`).
"""

from __future__ import annotations

from raysync.engine.stage.stage import Stage

__all__ = ["Stage"]
