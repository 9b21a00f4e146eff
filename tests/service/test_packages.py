"""Packages from hostile hands, and entrypoints that may not run."""

from __future__ import annotations

import io
import stat
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.errors import EntrypointRefused, NotFound, PackageError
from service.jobs.packages import Limits, check_entrypoint, inspect, package_id, unpack
from service.jobs.zip_count import count_entries
from service.server.app import create_app
from service.server.wiring import assemble
from service.store import Store
from service.store.packages import PackageRow
from tests.service.conftest import SPEC, World, settings_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_store import row

LIMITS = Limits(max_files=50, max_unpacked_bytes=4 << 20)


def packed(files: dict[str, bytes | str], **options: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = options.get("compress_type", zipfile.ZIP_DEFLATED)
            info.external_attr = options.get("mode", stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


GOOD = packed({"my_tasks.py": "x = 1", "lib/__init__.py": "", "lib/deep/part.py": "", "notes.txt": "hi"})


def test_a_package_is_looked_through_and_unpacked(tmp_path: Path) -> None:
    assert inspect(GOOD, LIMITS) == ("lib", "lib.deep.part", "my_tasks")
    folder = unpack(GOOD, tmp_path / "here", LIMITS)
    assert (folder / "my_tasks.py").read_text() == "x = 1"
    assert unpack(GOOD, tmp_path / "here", LIMITS) == folder
    assert not (tmp_path / "here.part").exists()


def lying() -> bytes:
    """A file whose header says it is small."""
    honest = packed({"big.py": b"\0" * (8 << 20)})
    return honest.replace((8 << 20).to_bytes(4, "little"), (10).to_bytes(4, "little"))


def overlapping() -> bytes:
    """Two entries that share one piece of compressed data."""
    buffer = io.BytesIO(packed({"a.py": b"x" * 1000, "b.py": b"x" * 1000}))
    raw = bytearray(buffer.getvalue())
    first, second = (raw.find(b"PK\x01\x02"), raw.rfind(b"PK\x01\x02"))
    raw[second + 42 : second + 46] = raw[first + 42 : first + 46]
    return bytes(raw)


def encrypted() -> bytes:
    raw = bytearray(packed({"a.py": "x"}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.find(mark) + offset] |= 1
    return bytes(raw)


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "parent": (lambda: packed({"../evil.py": "x"}), "not a path inside"),
    "hidden parent": (lambda: packed({"a/../../evil.py": "x"}), "not a path inside"),
    "absolute": (lambda: packed({"/etc/cron.d/evil": "x"}), "not a path inside"),
    "windows": (lambda: packed({"..\\evil.py": "x"}), "not a path inside"),
    "drive": (lambda: packed({"C:evil.py": "x"}), "not a path inside"),
    "newline": (lambda: packed({"a\nb.py": "x"}), "not a path inside"),
    "long name": (lambda: packed({"a" * 300 + ".py": "x"}), "not a path inside"),
    "link": (lambda: packed({"link.py": "/etc/passwd"}, mode=stat.S_IFLNK | 0o777), "link or a device"),
    "device": (lambda: packed({"dev.py": ""}, mode=stat.S_IFCHR | 0o666), "link or a device"),
    "bomb": (lambda: packed({"zeros.bin": b"\0" * (3 << 20)}), "far more than it should"),
    "large": (lambda: packed({f"{n}.bin": bytes(range(256)) * 8192 for n in range(3)}, compress_type=0), "more than"),
    "lying header": (lying, "damaged|far more|more than"),
    "overlapping": (overlapping, "damaged"),
    "encrypted": (encrypted, "encrypted"),
    "lzma": (lambda: packed({"a.py": "x" * 100}, compress_type=zipfile.ZIP_LZMA), "unusual"),
    "many files": (lambda: packed({f"{n}.py": "" for n in range(51)}), "51 files"),
    "empty": (lambda: packed({}), "no files"),
    "file and folder": (lambda: packed({"a": "x", "a/b.py": "x"}), "a file and a folder"),
    "shadow": (lambda: packed({"actors/__init__.py": ""}), "would hide raysync's own"),
    "shadow file": (lambda: packed({"raysync.py": ""}), "would hide raysync's own"),
    "not zip": (lambda: b"hello", "not a zip"),
    "cut": (lambda: GOOD[: len(GOOD) // 2], "not a zip"),
    "damaged": (lambda: GOOD[:40] + b"\xff\xff\xff" + GOOD[43:], "damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_packages_are_refused_and_leave_nothing(name: str, tmp_path: Path) -> None:
    make, word = HOSTILE[name]
    content = make()
    with pytest.raises(PackageError, match=word):
        inspect(content, LIMITS)
    target = tmp_path / "inside" / "package"
    with pytest.raises(PackageError):
        unpack(content, target, LIMITS)
    assert not target.exists()
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and tmp_path / "inside" not in path.parents]
    assert outside == []


@pytest.mark.parametrize(
    ("entrypoint", "modules", "allowed", "is_fine"),
    [
        ("my_tasks:Task", ("my_tasks",), (), True),
        ("lib.deep.part:Task", ("lib.deep.part",), (), True),
        ("os:system", (), (), False),
        ("os:system", ("my_tasks",), (), False),
        ("subprocess:Popen", ("my_tasks",), ("my_team.*",), False),
        ("my_team.tasks:Big", (), ("my_team.*",), True),
        ("my_teamster:Big", (), ("my_team.*",), False),
        ("builtins:eval", (), ("my_tasks:*",), False),
    ],
)
def test_entrypoints_are_the_packages_or_allowed(
    entrypoint: str, modules: tuple[str, ...], allowed: tuple[str, ...], is_fine: bool
) -> None:
    if is_fine:
        check_entrypoint(entrypoint, modules, allowed)
    else:
        with pytest.raises(EntrypointRefused):
            check_entrypoint(entrypoint, modules, allowed)


def test_a_package_goes_the_whole_way_and_runs_nothing_here(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    code = f"open({str(mark)!r}, 'w').close()\nclass Task: pass\n"
    content = packed({"hostile_task.py": code, "sitecustomize.py": code, "conftest.py": code, "setup.py": code})
    answer = world.call("POST", "/api/v1/packages", content=content, headers={"Content-Type": "application/zip"})
    assert answer.status_code == 201, answer.text
    package = answer.json()
    assert package["modules"] == ["conftest", "hostile_task", "setup", "sitecustomize"]
    spec = {**SPEC, "task": {"kind": "custom", "entrypoint": "hostile_task:Task", "args": {"__reduce__": "os.system"}}}
    id = world.submit(spec=spec, package=package["id"])
    until(lambda: id in world.runtime.alive)
    folder = Path(str(world.runtime.launches[0].working_dir))
    assert (folder / "hostile_task.py").read_text() == code
    assert not mark.exists(), "nothing of it was executed"
    assert "hostile_task" not in sys.modules
    again = world.call("POST", "/api/v1/packages", content=content, headers={"Content-Type": "application/zip"})
    assert again.json()["id"] == package["id"]


def test_entrypoints_are_refused_over_http(world: World) -> None:
    for entrypoint in ("os:system", "subprocess:run", "actors.api.job:submit", "builtins:exec"):
        spec = {**SPEC, "task": {"kind": "custom", "entrypoint": entrypoint, "args": {"command": "touch /tmp/x"}}}
        answer = world.call("POST", "/api/v1/jobs", json={"spec": spec})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:raysync:entrypoint-refused")
        assert answer.json()["errors"][0]["field"] == "spec.task.entrypoint"
    for package in ("0" * 64, "../../etc", "x"):
        answer = world.call("POST", "/api/v1/jobs", json={"spec": SPEC, "package": package})
        assert answer.status_code in (404, 422)
    for requirement in ("--index-url=http://evil", "git+https://evil/x", "a @ file:///etc", "-r x", "a; import os"):
        answer = world.call("POST", "/api/v1/jobs", json={"spec": SPEC, "pip": [requirement]})
        assert answer.status_code == 422, requirement
    for resume in ("../../etc", "/etc", "s3://x", "a/b/c", "a/checkpoint_1"):
        assert world.call("POST", "/api/v1/jobs", json={"spec": SPEC, "resume_from": resume}).status_code == 422
    assert world.runtime.launches == []


def test_old_code_that_no_job_needs_leaves_the_disk(tmp_path: Path, store: Store) -> None:
    settings = settings_for(tmp_path, package_days=1e-9)
    runtime = StillRuntime()
    kept, gone = packed({"kept.py": "x = 1"}), packed({"gone.py": "x = 1"})
    for content in (kept, gone):
        id = package_id(content)
        store.packages.add(PackageRow(id, "me", 0.0, len(content), ()), content)
        unpack(content, settings.folder / "packages" / id, Limits(10, 1 << 20))
    store.jobs.add(row(package=package_id(kept)))
    with TestClient(create_app(assemble(settings, store, runtime))):
        until(lambda: not (settings.folder / "packages" / package_id(gone)).exists())
    assert (settings.folder / "packages" / package_id(kept)).exists()
    with pytest.raises(NotFound):
        store.packages.get(package_id(gone))


def hollow(count: int, said: int | None = None, zip64: bool = False) -> bytes:
    """A zip that is nothing but a directory of very many entries; its end may say otherwise."""
    entry = b"PK\x01\x02" + b"\x14\x00\x14\x00" + b"\0" * 20 + b"\x01\x00" + b"\0" * 16 + b"a"
    directory, said = entry * count, count if said is None else said
    end = b""
    if zip64:
        end += b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, said, said, len(directory), 0)
        end += b"PK\x06\x07" + struct.pack("<IQI", 0, len(directory), 1)
    short = 0xFFFF if zip64 else said & 0xFFFF
    size = 0xFFFFFFFF if zip64 else len(directory)
    return directory + end + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, short, short, size, 0, 0)


@pytest.mark.parametrize(
    "content",
    [hollow(200_000, zip64=True), hollow(200_000, said=1), hollow(200_000, said=1, zip64=True), hollow(60_000)],
    ids=["zip64", "lying", "lying zip64", "plain"],
)
def test_entries_are_counted_before_they_are_read(content: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(PackageError, match="at most 50 are taken"):
        inspect(content, LIMITS)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2 * len(content) + (1 << 20), "no object of each entry was made"


def test_counting_agrees_with_reading() -> None:
    for count in (0, 1, 2, 50):
        assert count_entries(packed({f"f{n}.py": "x" for n in range(count)}), 50) == count
    assert count_entries(packed({f"f{n}.py": "x" for n in range(51)}), 50) == 51
    assert count_entries(b"no zip", 50) == 0
    with_comment = io.BytesIO(GOOD)
    with zipfile.ZipFile(with_comment, "a") as archive:
        archive.comment = b"made by hand"
    assert count_entries(with_comment.getvalue(), 50) == 4
    assert inspect(b"#!/bin/sh\n" + GOOD, LIMITS) == inspect(GOOD, LIMITS), "also behind something else"
