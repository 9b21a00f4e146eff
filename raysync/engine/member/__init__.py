"""The members of a job as coordinator and shards know them: phases (`member`), their part in a round (`round`), what
they say to shards (`courier`), which view deals out their data (`data_views`). How they train is
`raysync.engine.training`'s, `raysync.engine.worker`'s and `raysync.engine.stage`'s.
"""

from __future__ import annotations

from raysync.engine.member.member import Member
from raysync.engine.member.phase import Phase

__all__ = ["Member", "Phase"]
