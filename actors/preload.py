"""What a process has imported before it learns which actor it is, where it is started to wait for one.

Ray imports this module in every process of a node whose environment says so (`raysync serve` starts such nodes), and no
other module does. While the pool of warm processes is filled a file lies where `WARMING` says; a process that comes up
then takes its time, every other is wanted at once and imports what it needs itself.
"""

from __future__ import annotations

import importlib
import os

from actors.shell.process import KIND, SMALL, WARMING

_SMALL = ("actors.shell.coordinator",)
_OTHERS = ("actors.shell.worker", "raysync.engine.worker", "raysync.engine.server.shard")

if os.path.exists(os.environ.get(WARMING, "")):
    for name in _SMALL if os.environ.get(KIND) == SMALL else _OTHERS:
        importlib.import_module(name)
