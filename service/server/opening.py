"""The page's address with its reader's token, and the browser that is sent there."""

from __future__ import annotations

import html
import os
import threading
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path

_WAIT_S = 30.0
_PAGE = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={url}"><title>raysync</title><a href="{url}">The page of raysync</a>
"""


def page_address(url: str, token: str | None) -> str:
    """Return where the page is; the token is in the fragment, which no browser sends and the page takes out at once."""
    return f"{url}/#token={token}" if token else f"{url}/"


def open_when(is_ready: Callable[[], bool], folder: Path, address: str) -> None:
    """Open the page in this user's browser as soon as the service answers.

    The browser is given a file of this user's own that leads there: arguments of processes can be read by others.
    """
    path = folder / "page.html"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(_PAGE.format(url=html.escape(address)))

    def wait() -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while not is_ready() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        webbrowser.open(path.as_uri())

    threading.Thread(target=wait, name="open page", daemon=True).start()
