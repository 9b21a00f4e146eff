"""The service's books: jobs, their events, tokens and packages in SQLite or PostgreSQL, one code path for both."""

from __future__ import annotations

from service.store.database import Database
from service.store.events import EventRow, Events
from service.store.jobs import JobRow, Jobs
from service.store.packages import Packages
from service.store.tokens import TokenRow, Tokens

__all__ = ["Database", "EventRow", "Events", "JobRow", "Jobs", "Packages", "Store", "TokenRow", "Tokens"]


class Store:
    """All tables over one database."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.jobs = Jobs(self.database)
        self.events = Events(self.database)
        self.tokens = Tokens(self.database)
        self.packages = Packages(self.database)

    def close(self) -> None:
        """Let go of all connections."""
        self.database.close()
