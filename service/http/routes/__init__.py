"""One resource per file; each has a `router`. A new one is named below, and nowhere else on the way to the application.

Routes raise errors, and `service.http.problems` says which status each is; `service.http.deps` has what they ask for.
"""

from __future__ import annotations

from service.http.routes import about, artifacts, control, history, jobs, packages, page, series, stream, studies

ROUTERS = (
    jobs.router,
    control.router,
    history.router,
    artifacts.router,
    series.router,
    stream.router,
    packages.router,
    studies.router,
    about.router,
)
"""Under the prefix of the interface."""
ROOT_ROUTERS = (about.health, about.root, page.router)
"""At the root, where probes, scrapers and people look for them."""

__all__ = ["ROOT_ROUTERS", "ROUTERS"]
