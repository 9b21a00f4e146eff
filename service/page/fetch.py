"""Brings the libraries the page is drawn with into `vendor/`: `python -m service.page.fetch`.

`package-lock.json` says which versions and what their archives' sha512 must be; `package.json` says which of their
files the page needs. The archives come from the registry npm is configured with; neither npm nor Node has to be there.
Standard library only: this runs while raysync is installed, before its dependencies are there.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent
VENDOR = PAGE / "vendor"
_STAMP = "fetched.json"
_TIMEOUT_S = 20.0
_LIMIT_BYTES = 8 << 20
_IMPORT = re.compile(rb"""(?P<before>\bfrom\s*|\bimport\s*)(?P<quote>["'])(?P<name>[^"'./][^"']*)(?P=quote)""")

Download = Callable[[str], bytes]


class FetchError(Exception):
    """A library that could not be had, and what to do."""


def fetch(registry: str = "", page: Path = PAGE, vendor: Path = VENDOR, download: Download | None = None) -> bool:
    """Put the libraries into `vendor`, all or none; return whether there was anything to do."""
    package, lock = (json.loads((page / name).read_text("utf-8")) for name in ("package.json", "package-lock.json"))
    wanted = {name: _locked(lock, name) for name in package["dependencies"]}
    stamp = {"integrity": {name: found["integrity"] for name, found in wanted.items()}, "vendor": package["vendor"]}
    if is_there(vendor, stamp):
        return False
    registry = registry or configured_registry()
    archives = {name: _archive(name, found, registry, download or _download) for name, found in sorted(wanted.items())}
    files = {target: _member(archives, source) for target, source in package["vendor"].items()}
    _write(vendor, {name: _as_module(name, text, package["imports_of"]) for name, text in files.items()}, stamp)
    return True


def is_there(vendor: Path = VENDOR, stamp: object = None) -> bool:
    """Return whether the libraries are there; those the stamp names, if one is given."""
    try:
        found = json.loads((vendor / _STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return stamp is None or found == stamp


def configured_registry(env: Mapping[str, str] = os.environ, home: Path | None = None) -> str:
    """Return the registry npm is configured with: its variable, its files, or what npm itself says where it is."""
    given = {name.lower(): value for name, value in env.items()}
    files = [
        Path(".npmrc"),
        Path(given.get("npm_config_userconfig") or (home or Path.home()) / ".npmrc"),
        Path(given.get("npm_config_globalconfig") or "/etc/npmrc"),
    ]
    told = [given.get("npm_config_registry", ""), *(_registry_in(path) for path in files)]
    found = next((one for one in told if one), "") or _asked_npm()
    if not found:
        raise FetchError(
            "no npm registry is configured on this machine: name one, `python -m service.page.fetch --registry URL` "
            "(or npm_config_registry=URL while installing)"
        )
    return found.rstrip("/")


def _registry_in(path: Path) -> str:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    pairs = [line.partition("=") for line in lines if not line.lstrip().startswith(("#", ";"))]
    return next((value.strip().strip("\"'") for name, _, value in pairs if name.strip() == "registry"), "")


def _asked_npm() -> str:
    npm = shutil.which("npm")
    if npm is None:
        return ""
    try:
        told = subprocess.run(
            [npm, "config", "get", "registry"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip() if told.stdout.startswith("http") else ""


def _locked(lock: Mapping[str, Any], name: str) -> Mapping[str, str]:
    try:
        found: Mapping[str, str] = lock["packages"][f"node_modules/{name}"]
    except KeyError:
        raise FetchError(f"package-lock.json does not have {name}: `npm install --package-lock-only` adds it") from None
    return found


def _archive(name: str, locked: Mapping[str, str], registry: str, download: Download) -> bytes:
    """Return a library's archive, with the digest the lock file has, or raise."""
    url = f"{registry}/{name}/-/{name.rpartition('/')[2]}-{locked['version']}.tgz"
    try:
        content = download(url)
    except OSError as error:
        raise FetchError(f"{name} cannot be had from the registry: {error}") from None
    algorithm, _, digest = locked["integrity"].partition("-")
    if algorithm != "sha512" or hashlib.sha512(content).digest() != base64.b64decode(digest):
        raise FetchError(f"{name} {locked['version']} is not what package-lock.json says: its sha512 differs")
    return content


def _download(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise FetchError(f"a registry has an address that begins with https://, not {url.partition('/')[0]!r}")
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        content: bytes = answer.read(_LIMIT_BYTES)
    return content


def _member(archives: Mapping[str, bytes], source: str) -> bytes:
    """Return one file of one of the archives; nothing else of it is written anywhere."""
    name = next(name for name in sorted(archives, key=len, reverse=True) if source.startswith(f"{name}/"))
    inside = f"package/{source.removeprefix(f'{name}/')}"
    with tarfile.open(fileobj=io.BytesIO(archives[name]), mode="r:gz") as archive:
        try:
            file = archive.extractfile(inside)
        except KeyError:
            file = None
        if file is None:
            raise FetchError(f"{name} has no file {inside}")
        return file.read()


def _as_module(name: str, text: bytes, imports_of: Mapping[str, str]) -> bytes:
    """Return a file as a browser can import it: bare names become the files beside it."""
    if not name.endswith(".js"):
        return text

    def beside(match: re.Match[bytes]) -> bytes:
        file = imports_of.get(match["name"].decode())
        return match[0] if file is None else match["before"] + match["quote"] + f"./{file}".encode() + match["quote"]

    text = _IMPORT.sub(beside, text)
    text = re.sub(rb"\n?//# sourceMappingURL=.*", b"", text)
    return text if b"export" in text else text + b"\nexport default uPlot;\n"


def _write(vendor: Path, files: Mapping[str, bytes], stamp: object) -> None:
    """Write all files, the stamp last: a half-written folder does not count as fetched."""
    vendor.mkdir(exist_ok=True)
    (vendor / _STAMP).unlink(missing_ok=True)
    for name, text in files.items():
        (vendor / name).write_bytes(text)
    (vendor / _STAMP).write_text(json.dumps(stamp, indent=1), "utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Fetch; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.page.fetch", description="Fetch the page's libraries.")
    parser.add_argument("--registry", default="", help="an npm registry's address; else the one npm is configured with")
    try:
        is_new = fetch(parser.parse_args(arguments).registry)
    except FetchError as error:
        print(f"the page's libraries are not there: {error}", file=sys.stderr)
        return 1
    print(f"the page's libraries are in {VENDOR}" if is_new else "the page's libraries were there already")
    return 0


if __name__ == "__main__":
    sys.exit(main())
