"""Where the service is, and how httpx reaches it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2 as httpx

from service.client.call import Call
from service.client.retry import Unreachable
from service.settings import ClientSettings, is_loopback

_NETLOC = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^\[\]:@]+))(?::\d*)?")

TIMEOUT = httpx.Timeout(60.0, connect=5.0)


class NoService(Unreachable):
    """No address was given, and no service was started here."""

    def __init__(self) -> None:
        super().__init__("", "")

    def __str__(self) -> str:
        return "no raysync service was started here: start one with `raysync serve`, or give --url or RAYSYNC_URL"


class Place(NamedTuple):
    """Where a service is, and the token for it."""

    url: str
    token: str


def find_service(url: str | None = None, token: str | None = None) -> Place:
    """Return the service to talk to: what was given, else the environment's, else the one this user runs here."""
    settings = ClientSettings()
    noted = _noted(settings.data.expanduser() / "client.json")
    url = (url or settings.url or noted.get("url", "")).rstrip("/")
    if not url:
        raise NoService
    if "://" not in url:  # a token goes in clear text only to this machine
        url = f"{'http' if is_here(f'//{url}') else 'https'}://{url}"
    own = noted.get("token", "") if url == noted.get("url") else ""  # it is for no other service
    return Place(url, token or settings.token or own)


def is_here(url: str) -> bool:
    """Return whether a URL leads to this machine; one that is written oddly does not."""
    try:
        found = _NETLOC.fullmatch(urlsplit(url).netloc)
    except ValueError:
        return False
    return found is not None and is_loopback(found["v6"] or found["host"])


def transport_options(place: Place, verify: bool | str) -> dict[str, Any]:
    """Return how httpx is to reach a service: to this machine no proxy of the environment is ever asked."""
    headers = {"Authorization": f"Bearer {place.token}"} if place.token else {}
    return {
        "base_url": place.url,
        "headers": headers,
        "timeout": TIMEOUT,
        "verify": verification(verify),
        "trust_env": not is_here(place.url),
    }


def _noted(path: Path) -> dict[str, str]:
    """Return what the service of this machine has written down for its user."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def request_of(call: Call[Any]) -> dict[str, Any]:
    """Return a call as httpx takes it."""
    body = {"json": call.json} if call.json is not None else {"content": call.content} if call.content else {}
    return {"method": call.method, "url": call.path, "params": call.params, "headers": call.headers, **body}


def verification(verify: bool | str) -> Any:
    """Return what httpx wants: True, False, or a context that trusts one certificate."""
    if isinstance(verify, bool):
        return verify
    import ssl

    return ssl.create_default_context(cafile=str(Path(verify)))
