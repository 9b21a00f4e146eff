"""One Ray of our own for all tests here, and a count of what jobs leave behind on it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group_table

from actors.job.actor_group import clear_leftovers

NUM_CPUS = 12


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: "test_attach" in item.nodeid)  # last: Ray Train leaves actors that keep a core busy
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="rs-")  # short: paths of sockets may have 107 characters
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # inherited by every actor, so what they leave can be counted
    ray.init(
        address="local",
        num_cpus=NUM_CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=200 << 20,
        namespace="raysync-tests",
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def storage(local_ray: None, tmp_path: Path) -> Iterator[str]:
    """A place for jobs' folders; afterwards nothing of any job may be left."""
    before = sockets() | shared_memory()
    yield str(tmp_path / "results")
    left = leftovers(before)
    for job in {entry["name"].partition(":")[0] for entry in left.get("actors", [])}:
        clear_leftovers(job)  # or every test after this one would find less room
    assert left == {}


def sockets() -> set[Path]:
    """Return the folders with sockets on this machine."""
    return {*Path(os.environ["TMPDIR"]).glob("raysync-*")}


def shared_memory() -> set[Path]:
    """Return what this machine holds in shared memory beside Ray's own stores."""
    return {found for found in Path("/dev/shm").iterdir() if found.name.startswith(("raysync", "psm_", "torch_"))}


def leftovers(before: Set[Path] = frozenset()) -> dict[str, Any]:
    """Return what jobs have left on this Ray and this machine: actors, placement groups, folders with sockets and
    shared memory that were not there `before`; tests of links kill theirs.
    """
    named = [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == "raysync"]
    groups = [entry for entry in placement_group_table().values() if entry["state"] != "REMOVED"]
    found = {
        "actors": named,
        "placement_groups": groups,
        "sockets": sockets() - before,
        "shared_memory": shared_memory() - before,
    }
    return {kind: things for kind, things in found.items() if things}
