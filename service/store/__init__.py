"""The service's books: jobs, their events, tokens and packages in SQLite or PostgreSQL, one code path for both.

Import `Store` and the rows from here; each file beside it reads and writes one thing, in transactions of `Database`. A
new table is a `Table` in `tables`, a file in `migrations/versions`, a file here, and an attribute of `Store`.
"""

from __future__ import annotations

from service.store.database import Database
from service.store.events import EventRow, Events
from service.store.job_row import JobRow
from service.store.jobs import Jobs
from service.store.knob_versions import KnobVersions
from service.store.leases import Leases
from service.store.packages import Packages
from service.store.pulse import Pulse
from service.store.queue import Queue
from service.store.removal import Removal
from service.store.series import Series
from service.store.studies import Studies
from service.store.tokens import TokenRow, Tokens
from service.store.totals import Totals

__all__ = ["Database", "EventRow", "Events", "JobRow", "Jobs", "Packages", "Store", "TokenRow", "Tokens"]


class Store:
    """All tables over one database."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.jobs = Jobs(self.database)
        self.knobs = KnobVersions(self.database)
        self.events = Events(self.database)
        self.tokens = Tokens(self.database)
        self.packages = Packages(self.database)
        self.leases = Leases(self.database)
        self.queue = Queue(self.database)
        self.removal = Removal(self.database)
        self.totals = Totals(self.database)
        self.series = Series(self.database)
        self.pulse = Pulse(self.database)
        self.studies = Studies(self.database)

    def close(self) -> None:
        """Let go of all connections."""
        self.database.close()
