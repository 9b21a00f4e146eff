"""One resource per file; each has a `router`. A new one is named below, and nowhere else on the way to the application.

Routes raise errors, and `service.http.problems` says which status each is; `service.http.deps` has what they ask for.
"""

from __future__ import annotations

from service.http.routes import about, control, history, jobs, packages

ROUTERS = (jobs.router, control.router, history.router, packages.router, about.router)
"""Under the prefix of the interface."""
ROOT_ROUTERS = (about.health, about.root)
"""At the root, where probes and scrapers look for them."""

__all__ = ["ROOT_ROUTERS", "ROUTERS"]
