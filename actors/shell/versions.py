"""What code a process runs, so that two that differ can be told apart before they train together."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

import raysync


class Code(msgspec.Struct, frozen=True):
    """Versions that must agree for bits to agree."""

    raysync: str
    sources: str
    """A digest of raysync's own files: two checkouts of one version differ here."""
    python: str
    torch: str
    ray: str
    pyzmq: str


@lru_cache(maxsize=1)
def this_code() -> Code:
    """Return what this process runs."""
    python = ".".join(platform.python_version_tuple()[:2])
    return Code(raysync.__version__, _digest(), python, *map(_version, ("torch", "ray", "pyzmq")))


def differences(driver: Code, node: Code) -> tuple[str, ...]:
    """Return in words what a node has otherwise than the driver."""
    pairs = zip(
        msgspec.structs.fields(Code), msgspec.structs.astuple(driver), msgspec.structs.astuple(node), strict=True
    )
    return tuple(f"{field.name} is {theirs} there and {ours} here" for field, ours, theirs in pairs if ours != theirs)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _digest() -> str:
    digest = hashlib.blake2b(digest_size=6)
    for package in (Path(raysync.__file__).parent, Path(__file__).parents[1]):
        for source in sorted(package.rglob("*.py")):
            digest.update(str(source.relative_to(package.parent)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()
