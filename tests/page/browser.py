"""Debian's Chromium, driven by Playwright; a tab notes what went wrong in it and which requests left the service."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

_FLAGS = [
    "--no-sandbox",  # there is none for root
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--disable-dev-shm-usage",
]
WAIT_MS = 60_000


def chromium() -> str | None:
    """Return the browser's path, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """A page of the browser at the service."""

    def __init__(self, page: Page, url: str, token: str) -> None:
        self.page, self.url, self.token = page, url, token
        self.errors: list[str] = []
        self.abroad: list[str] = []
        self.tolerated: list[str] = []
        """Words of errors that a test brings about on purpose."""
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: self._noted(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._noted(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def open(self, route: str = "", token: str | None = None) -> None:
        """Open a view with the token in the address, as `raysync serve` prints it."""
        self.page.goto(f"{self.url}/#token={token or self.token}&to={route}")

    def go(self, route: str) -> None:
        """Go to another view, as a link does."""
        self.page.evaluate("address => { location.hash = address }", f"#/{route}")

    def see(self, selector: str, text: str | None = None) -> Any:
        """Wait for an element that can be seen; return it."""
        found = self.page.locator(selector, has_text=text) if text else self.page.locator(selector)
        found.first.wait_for(state="visible")
        return found.first

    def until(self, expression: str, argument: Any = None) -> Any:
        """Wait until an expression is true in the page; return its value."""
        return self.page.wait_for_function(expression, arg=argument, timeout=WAIT_MS).json_value()

    def painted(self) -> None:
        """Wait until what was due is painted: charts take turns, a frame or two each."""
        self.page.evaluate(
            "() => new Promise((done) => { let n = 12; const tick = () => (n-- ? requestAnimationFrame(tick) : done()); tick() })"
        )

    def axe(self) -> list[str]:
        """Return what axe finds that is serious, as sentences."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']} ({one['impact']}): {node['html'][:160]} {node['failureSummary'][:200]}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def _noted(self, text: str) -> None:
        if not any(word in text for word in self.tolerated):
            self.errors.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:", "file:")):  # --open begins with a file of the user's own
            self.abroad.append(url)


class Browser:
    """A headless Chromium."""

    def __enter__(self) -> Self:
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=chromium(), args=_FLAGS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()
        self._playwright.stop()

    def renderers(self) -> list[int]:
        """Return the processes that draw pages."""
        found = self._browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
        return [one["id"] for one in found if one["type"] == "renderer"]

    @contextlib.contextmanager
    def tab(self, url: str, token: str, **options: Any) -> Iterator[Tab]:
        """Open a tab with a profile of its own; at its end nothing may have gone wrong in it, nor left the service."""
        defaults: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
        context = self._browser.new_context(**{**defaults, **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        tab = Tab(context.new_page(), url, token)
        try:
            yield tab
            assert not tab.errors, tab.errors
            assert not tab.abroad, tab.abroad
        finally:
            context.close()
