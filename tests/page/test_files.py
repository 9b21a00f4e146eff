"""The page's files: fetched, checked, and served without a token but with a strict policy."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.page import assets
from service.page import fetch as fetching
from service.page.assets import STATIC, read_page
from service.page.fetch import FetchError, configured_registry, fetch, is_there
from service.server import opening
from service.server.opening import page_address
from tests.page.served import until
from tests.service.conftest import World

FIRST_LOAD_BYTES = 150_000


def archive(**files: str) -> bytes:
    """Return an archive as a registry has it."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as found:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name.replace('__', '/')}.js")
            entry.size = len(text)
            found.addfile(entry, io.BytesIO(text.encode()))
    return target.getvalue()


LIBRARIES = {
    "little": archive(main='import{h}from"other/inner";export const a=h;\n//# sourceMappingURL=main.js.map'),
    "@some/other": archive(dist__inner="var uPlot=1"),
}


def page_folder(folder: Path, **changed: str) -> Path:
    """Write the two files that say what is wanted."""
    integrity = {
        name: "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
        for name, content in LIBRARIES.items()
    } | changed
    packages = {f"node_modules/{name}": {"version": "1.2.3", "integrity": found} for name, found in integrity.items()}
    wanted: dict[str, Any] = {
        "dependencies": dict.fromkeys(LIBRARIES, "1.2.3"),
        "vendor": {"little.js": "little/main.js", "other.js": "@some/other/dist/inner.js"},
        "imports_of": {"other/inner": "other.js"},
    }
    (folder / "package.json").write_text(json.dumps(wanted))
    (folder / "package-lock.json").write_text(json.dumps({"packages": packages}))
    return folder


def registry(asked: list[str]) -> Callable[[str], bytes]:
    def download(url: str) -> bytes:
        asked.append(url)
        return next(content for name, content in LIBRARIES.items() if f"/{name}/-/" in url)

    return download


def test_libraries_are_fetched_once_and_import_each_other(tmp_path: Path) -> None:
    page, vendor, asked = page_folder(tmp_path), tmp_path / "vendor", []
    assert fetch("https://registry.test", page, vendor, registry(asked))
    assert sorted(asked) == [
        "https://registry.test/@some/other/-/other-1.2.3.tgz",
        "https://registry.test/little/-/little-1.2.3.tgz",
    ]
    assert (vendor / "little.js").read_text() == 'import{h}from"./other.js";export const a=h;'
    assert (vendor / "other.js").read_text().endswith("export default uPlot;\n")
    assert is_there(vendor)
    assert not fetch("https://registry.test", page, vendor, registry(asked))
    assert len(asked) == 2


def test_an_archive_with_another_digest_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    page = page_folder(tmp_path, little="sha512-" + base64.b64encode(bytes(64)).decode())
    with pytest.raises(FetchError, match=r"little 1\.2\.3 is not what package-lock\.json says"):
        fetch("https://registry.test", page, tmp_path / "vendor", registry([]))
    assert not (tmp_path / "vendor").exists()


def test_without_a_network_it_says_what_lacks(tmp_path: Path) -> None:
    def away(url: str) -> bytes:
        raise OSError("no network")

    with pytest.raises(FetchError, match="cannot be had from the registry: no network"):
        fetch("https://registry.test", page_folder(tmp_path), tmp_path / "vendor", away)


def test_the_registry_is_the_one_npm_is_configured_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".npmrc").write_text("# a comment\nregistry = https://mine.test/npm/\n")
    nowhere = {"NPM_CONFIG_GLOBALCONFIG": str(tmp_path / "none"), "NPM_CONFIG_USERCONFIG": str(tmp_path / "none")}
    assert configured_registry(nowhere) == "https://mine.test/npm"
    assert configured_registry({**nowhere, "npm_config_registry": "https://first.test/"}) == "https://first.test"
    (tmp_path / ".npmrc").unlink()
    monkeypatch.setattr(fetching.shutil, "which", lambda name: None)
    with pytest.raises(FetchError, match="--registry URL"):
        configured_registry(nowhere)


def test_an_installation_without_a_network_succeeds_and_says_what_lacks(tmp_path: Path) -> None:
    """The hook that setuptools runs, loaded as setuptools loads it: alone, from its file."""
    pytest.importorskip("setuptools")
    for name in ("build.py", "fetch.py", "package.json", "package-lock.json"):
        shutil.copy(STATIC.parent / name, tmp_path)
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['_fetched']()"
    env = {**os.environ, "npm_config_registry": "http://127.0.0.1:9", "NO_PROXY": "*"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "build.py")], env=env, capture_output=True, text=True, check=True
    )
    assert "`python -m service.page.fetch` gets them later" in done.stdout
    assert not (tmp_path / "vendor").exists()


def test_the_lock_file_names_no_place_and_every_archive_has_a_digest() -> None:
    lock = json.loads((STATIC.parent / "package-lock.json").read_text())
    packages = {name: found for name, found in lock["packages"].items() if name}
    assert packages
    assert all(found["integrity"].startswith("sha512-") for found in packages.values())
    assert not any("resolved" in found for found in packages.values())


def test_without_libraries_the_page_says_how_to_get_them(tmp_path: Path) -> None:
    page = read_page(STATIC, tmp_path / "vendor")
    assert b"python -m service.page.fetch" in page.entry.content
    assert page.entry.content.count(b"<script") == 1, "the one that takes a token out of the address"
    assert not any(name.startswith("vendor/") for name in page.files)


def test_libraries_that_are_fetched_later_count_without_a_restart(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_there():
        pytest.skip("the page's libraries are not there: python -m service.page.fetch")
    vendor = tmp_path / "vendor"
    monkeypatch.setattr(assets, "VENDOR", vendor)
    assets._read_once.cache_clear()
    try:
        assert "python -m service.page.fetch" in world.http.get("/").text
        assert world.http.get("/page/vendor/preact.js").status_code == 404
        shutil.copytree(fetching.VENDOR, vendor)
        assert 'src="page/app/main.js"' in world.http.get("/").text
        assert world.http.get("/page/vendor/preact.js").status_code == 200
    finally:
        assets._read_once.cache_clear()


def test_the_page_needs_no_token_and_has_a_strict_policy(world: World) -> None:
    answer = world.http.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-cache"
    assert world.http.get("/", headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    assert world.http.head("/").status_code == 200
    plain = world.http.get("/page/style.css", headers={"Accept-Encoding": "identity"})
    assert plain.content == (STATIC / "style.css").read_bytes()
    assert "content-encoding" not in plain.headers
    missing = world.http.get("/page/../settings.py")
    assert missing.status_code == 404
    assert world.http.get("/page/app/none.js").json()["type"] == "urn:raysync:not-found"
    assert "style-src" not in world.call("GET", "/api/v1/jobs").headers["content-security-policy"]


@pytest.mark.skipif(not is_there(), reason="the page's libraries are not there: python -m service.page.fetch")
def test_the_first_load_is_small() -> None:
    page = read_page(STATIC, fetching.VENDOR)
    loaded = [page.entry, *(asset for name, asset in page.files.items() if name.endswith((".js", ".css", ".svg")))]
    assert sum(len(asset.gzipped) for asset in loaded) <= FIRST_LOAD_BYTES
    assert all(gzip.decompress(asset.gzipped) == asset.content for asset in loaded)


def test_every_file_of_the_page_is_asked_for_by_the_page() -> None:
    """What one module imports is there: no build step would say so."""
    for path in (STATIC / "app").rglob("*.js"):
        for line in path.read_text().splitlines():
            if line.startswith(("import ", "export {")) and ' from "' in line:
                target = (path.parent / line.split(' from "')[1].split('"')[0]).resolve()
                assert target.is_file() or "vendor" in target.parts, f"{path.name} imports {target}"


def test_the_browser_is_sent_to_the_page_by_a_file_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(opening.webbrowser, "open", opened.append)
    address = page_address("http://127.0.0.1:8420", "rs_a_b")
    assert address == "http://127.0.0.1:8420/#token=rs_a_b"
    assert page_address("http://127.0.0.1:8420", None) == "http://127.0.0.1:8420/"
    opening.open_when(lambda: True, tmp_path, address)
    until(lambda: opened)
    assert opened == [(tmp_path / "page.html").as_uri()]
    assert "rs_a_b" not in opened[0]
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o600
    assert address in (tmp_path / "page.html").read_text()
