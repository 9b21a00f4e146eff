"""The page's files, read once: each with its type, its entity tag and a compressed twin."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from service.page.fetch import VENDOR, is_there

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Asset(NamedTuple):
    """One file as it is sent."""

    media_type: str
    tag: str
    content: bytes
    gzipped: bytes


class Page(NamedTuple):
    """The page as it is served."""

    entry: Asset
    files: Mapping[str, Asset]
    """By path below `/page/`."""


def page() -> Page:
    """Return the page; without its libraries, one that says how to get them, until they are there."""
    return _read_once(is_there(VENDOR))


@lru_cache(maxsize=2)
def _read_once(is_whole: bool) -> Page:
    return read_page(STATIC, VENDOR)


def read_page(static: Path, vendor: Path) -> Page:
    """Return the page made of these folders."""
    files = {str(path.relative_to(static)): path for path in static.rglob("*") if path.suffix in _TYPES}
    if is_there(vendor):
        files |= {f"vendor/{path.name}": path for path in vendor.iterdir() if path.suffix in _TYPES}
    assets = {name: _asset(path) for name, path in sorted(files.items())}
    return Page(assets["index.html" if is_there(vendor) else "missing.html"], MappingProxyType(assets))


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:32]
    return Asset(_TYPES[path.suffix], tag, content, gzip.compress(content, 9, mtime=0))
