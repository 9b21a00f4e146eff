"""A data-parallel worker: its phases (`worker`), its part in a round (`round`), what it says to shards (`courier`),
which view deals out its data (`data_views`). How it trains is `raysync.engine.training`'s.
"""

from __future__ import annotations

from raysync.engine.worker.phase import Phase
from raysync.engine.worker.worker import Worker

__all__ = ["Phase", "Worker"]
