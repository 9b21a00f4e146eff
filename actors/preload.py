"""What a process of ours has imported before it learns which actor it is.

Ray imports this module in every process of a node that was started with `PRELOAD` in its environment, and no other
module does. Processes that compute are told from others by a variable of their runtime environment, so that those
that do not stay small.
"""

from __future__ import annotations

import importlib
import os

from actors.shell.process import COMPUTING, KIND

_MODULES = {
    COMPUTING: (
        "raysync.compress.kernels",
        "actors.shell.worker",
        "raysync.engine.worker",
        "raysync.engine.server.shard",
    ),
    None: ("actors.job.controller", "actors.shell.coordinator"),
}

for name in _MODULES.get(os.environ.get(KIND), ()):
    importlib.import_module(name)
