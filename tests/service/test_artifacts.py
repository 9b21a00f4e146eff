"""What a job has made: listed for all who look, downloaded by operators as a stream, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.storage.files import read_piece, takeable
from actors.storage.folder import Folder, seal
from raysync.errors import StorageError
from service.http.routes.artifacts import part_of
from tests.service.conftest import World

MODEL = bytes(range(256)) * 10_000


def made(world: World) -> str:
    """Return the id of a job that has made things."""
    id = world.finished()
    spans = [["forward", 0, 0, 10.0, 11.0], ["backward", 0, 0, 12.0, 13.0]]
    world.runtime.folders[id].files = {
        "final/model.pt": ("model", MODEL, None),
        "checkpoint_000003/manifest.json": ("checkpoint", b"{}", 30),
        "trace/stage-1-0.json": ("trace", json.dumps(spans).encode(), None),
    }
    return id


def test_what_a_job_has_made_is_listed_and_downloaded(world: World) -> None:
    id = made(world)
    found = world.call("GET", f"/api/v1/jobs/{id}/artifacts", "viewer").json()["items"]
    assert found[0] == {"path": "final/model.pt", "kind": "model", "size_bytes": len(MODEL), "step": None}
    assert found[1]["step"] == 30
    path = f"/api/v1/jobs/{id}/artifacts/final/model.pt"
    answer = world.call("GET", path, "operator")
    assert (answer.status_code, answer.content) == (200, MODEL)
    assert answer.headers["content-length"] == str(len(MODEL))
    assert answer.headers["content-disposition"] == 'attachment; filename="model.pt"'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert world.call("GET", path, "viewer").status_code == 403
    assert world.call("HEAD", path, "operator").headers["content-length"] == str(len(MODEL))
    part = world.call("GET", path, headers={"Range": "bytes=1000000-1000999"})
    assert (part.status_code, part.content) == (206, MODEL[1_000_000:1_001_000])
    assert part.headers["content-range"] == f"bytes 1000000-1000999/{len(MODEL)}"
    answer = world.call("GET", path, headers={"Range": f"bytes={len(MODEL)}-"})
    assert (answer.status_code, answer.json()["type"]) == (416, "urn:raysync:range-refused")


@pytest.mark.parametrize(
    "path",
    [
        *("final/other.pt", "final/..%2fstatus.json", "%2e%2e/other/final/model.pt", "..%2f..%2fetc/passwd"),
        *("final/%00", "final/.hidden", "status.json", "%2fetc%2fpasswd", "final//model.pt", "logs/logs.txt"),
    ],
)
def test_no_path_leads_elsewhere(path: str, world: World) -> None:
    answer = world.call("GET", f"/api/v1/jobs/{made(world)}/artifacts/{path}")
    assert answer.status_code in (404, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_schedule_of_a_pipeline_as_it_ran(world: World) -> None:
    found = world.call("GET", f"/api/v1/jobs/{made(world)}/trace", "viewer").json()
    first, second = found["spans"]
    assert (first["stage"], first["replica"], first["kind"], first["start_s"], first["end_s"]) == (
        1,
        0,
        "forward",
        0,
        1,
    )
    assert second["start_s"] == 2.0
    assert found["utilisation"] == [{"stage": 1, "replica": 0, "ratio": pytest.approx(2 / 3)}]
    assert world.call("GET", f"/api/v1/jobs/{world.running()}/trace").json() == {"spans": [], "utilisation": []}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (0, 100)), ("bytes=0-", (0, 100)), ("bytes=5-9", (5, 10)), ("bytes=-10", (90, 100)),
        ("bytes=90-1000", (90, 100)), ("bytes=100-", None), ("bytes=9-5", None), ("bytes=-", None), ("bytes=-0", None),
        ("lines=1-2", None), ("bytes=0-1,5-6", None), ("bytes=x-", None),
    ],
)  # fmt: skip
def test_the_part_that_is_asked_for(text: str | None, expected: tuple[int, int] | None) -> None:
    from service.errors import RangeRefused

    if expected is None:
        with pytest.raises(RangeRefused):
            part_of(text, 100)
    else:
        assert part_of(text, 100) == expected


def test_only_what_is_complete_and_no_link_is_taken_along(tmp_path: Path) -> None:
    job = Folder(str(tmp_path / "job"))
    job.at("final").write("model.pt", b"model")
    job.at("checkpoint_000001").write("worker-0.pt", b"part")
    seal(job, 1, ["worker-0.pt"], {"step": 7})
    job.at("checkpoint_000002").write("worker-0.pt", b"not complete")
    job.write("status.json", b"{}")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "job/final/link.pt").symlink_to(tmp_path / "secret")
    (tmp_path / "job/trace").symlink_to(tmp_path)
    found = {(file.path, file.kind, file.step) for file in takeable(job)}
    assert found == {
        ("final/model.pt", "model", None),
        ("checkpoint_000001/worker-0.pt", "checkpoint", 7),
        ("checkpoint_000001/manifest.json", "checkpoint", 7),
    }
    assert read_piece(job, "final/model.pt", 1, 3) == b"ode"
    assert read_piece(job, "final/model.pt", 3, 100) == b"el"
    for name in ("final/link.pt", "trace/secret", "../secret", "final/../../secret", "status.json", "final/none.pt"):
        with pytest.raises(StorageError):
            read_piece(job, name, 0, 10)
