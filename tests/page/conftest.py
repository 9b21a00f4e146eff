"""A browser and a service for the page's tests; they are skipped where there is no Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.page.fetch import is_there
from tests.page.browser import Browser, Tab, chromium
from tests.page.served import Served
from tests.service.conftest import World, empty_database, store, world

__all__ = ["World", "empty_database", "store", "world"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests in the browser share one service: they stay in one process; those on Ray stay with the others on Ray."""
    for item in items:
        is_here = item.path.parent == Path(__file__).parent and "browser" in getattr(item, "fixturenames", ())
        if is_here and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("page"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium; Playwright runs an event loop in this thread as long, so not while other tests want one."""
    if chromium() is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    if not is_there():
        pytest.skip("the page's libraries are not there: python -m service.page.fetch")
    with Browser() as found:
        yield found


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service for all tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("page")
    found = Served(folder)
    yield found
    found.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tab(browser: Browser, served: Served) -> Iterator[Tab]:
    """A fresh tab at the service, as its admin."""
    with browser.tab(served.url, served.tokens["admin"]) as found:
        yield found
