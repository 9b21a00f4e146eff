"""Series for charts: what is kept of long ones, by worker, over bytes, only what is new; on both databases."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from raysync.events import Event
from service.store import Store
from service.store.points import Key, reduced, thinned
from service.store.series import SIZES, UNIT, Segment, plan
from tests.service.conftest import World, until
from tests.service.test_store import books, postgres, row

__all__ = ["books", "postgres"]

LAST = 3 * SIZES[3] + 700
"""So long a job has blocks of four levels and some events beside them."""


def told(n: int) -> Event:
    """Return an event: metrics, an evaluation now and then, and decisions with a score of each worker."""
    if n % 2:
        data: dict[str, Any] = {"sync": n % 10 == 1, "reason": "", "round": 0, "scores": {"0": n / 2, "1": -n / 2}}
        return Event(sequence=n, kind="decision", step=n // 2, time_s=0.5 * n, data=data)
    values = {"train/loss": random.Random(n).random(), "comm/bytes_up": 10.0 * n, "comm/bytes_down": 5.0 * n}
    values |= {"eval/accuracy": n / LAST} if n % 1000 == 0 else {}
    return Event(sequence=n, kind="metrics", step=n // 2, time_s=0.5 * n, data=values)


def fill(store: Store, spikes: tuple[int, ...] = ()) -> None:
    store.jobs.add(row())
    for first in range(0, LAST, 2000):
        records = [told(n) for n in range(first, min(LAST, first + 2000))]
        for record in records:
            if record.sequence in spikes:
                record.data["train/loss"] = 100.0
        store.events.append("job-1", records, {})
    while store.series.roll("job-1"):
        pass


def test_a_long_series_keeps_its_spikes_its_ends_and_all_that_is_rare(books: Store) -> None:
    spikes = (1234, 7000, LAST - 2)
    fill(books, spikes)
    for points in (40, 100, 500, 2000):
        _check_whole(books, spikes, points)
    _check_workers(books)
    for after in (0, 63, 64, 700, SIZES[3] - 1, SIZES[3] + 5, LAST - 300, LAST - 3):
        _check_new(books, after)


def _check_whole(books: Store, spikes: tuple[int, ...], points: int) -> None:
    names = ("train/loss", "eval/accuracy", "decision/sync", "not/there")
    found = books.series.read("job-1", -1, LAST - 1, names, points, by_worker=False)
    assert {*found} == {Key("train/loss"), Key("eval/accuracy"), Key("decision/sync")}
    loss = found[Key("train/loss")]
    assert loss.total == (LAST + 1) // 2
    assert points / 8 < len(loss.points) <= points
    assert [point[0] for point in loss.points] == sorted({point[0] for point in loss.points}), "in order, each once"
    assert {*spikes} <= {point[0] for point in loss.points}, "each is the largest of its piece"
    assert (loss.points[0][0], loss.points[-1][0]) == (0, LAST - 1 - (LAST - 1) % 2)
    rare = found[Key("eval/accuracy")]
    assert (rare.total, len(rare.points)) == (LAST // 1000 + 1, LAST // 1000 + 1), "all evaluations"
    for sequence, step, time_s, sent, _ in loss.points:
        assert (step, time_s, sent) == (sequence // 2, 0.5 * sequence, 15.0 * sequence)


def _check_workers(books: Store) -> None:
    found = books.series.read("job-1", -1, LAST - 1, ["sync/grad_delta"], 200, by_worker=True)
    assert [key.worker for key in sorted(found)] == [0, 1]
    for worker, sign in ((0, 1), (1, -1)):
        points = found[Key("sync/grad_delta", worker)].points
        assert all(value == sign * sequence / 2 for sequence, _, _, _, value in points)
        assert points[-1][0] == LAST - 1 - LAST % 2


def _check_new(books: Store, after: int) -> None:
    found = books.series.read("job-1", after, LAST - 1, ["train/loss"], 4000, by_worker=False)[Key("train/loss")]
    expected = [n for n in range(after + 1, LAST) if n % 2 == 0]
    assert found.total == len(expected)
    assert (found.points[0][0], found.points[-1][0]) == (expected[0], expected[-1])
    assert all(sent == 15.0 * sequence for sequence, _, _, sent, _ in found.points)


def test_bytes_never_go_back_with_a_job(books: Store) -> None:
    books.jobs.add(row())
    sent = [*range(0, 3000, 10), *range(2000, 3500, 10)]  # it went back to a checkpoint
    records = [
        Event(sequence=n, kind="metrics", step=n, time_s=n, data={"comm/bytes_up": value, "x": 1.0})
        for n, value in enumerate(sent)
    ]
    books.events.append("job-1", records, {})
    for _ in range(2):  # of events, and of blocks
        found = books.series.read("job-1", -1, len(sent) - 1, ["x"], 4000, by_worker=False)[Key("x")]
        bytes_sent = [point[3] for point in found.points]
        assert bytes_sent == sorted(bytes_sent)
        assert bytes_sent[-1] == 2990 + 1490
        books.series.roll("job-1")


@pytest.mark.parametrize(("first", "end", "points"), [(0, 100_000, 500), (77, 100_000, 500), (99_000, 100_000, 40)])
def test_a_plan_covers_everything_once_with_few_pieces(first: int, end: int, points: int) -> None:
    rolled = (end - 130) // UNIT * UNIT
    at = first
    for segment in plan(first, end, rolled, points, 0):
        size = SIZES[segment.level] if segment.level >= 0 else 1
        assert segment.first * size == at
        at = segment.end * size
        assert segment.level < 0 or at <= rolled
    assert at == end
    blocks = sum(part.end - part.first for part in plan(first, end, rolled, points, 0) if part.level >= 0)
    assert blocks <= points + 4 * len(SIZES) * 2
    assert plan(5, 5, rolled, points, 0) == []
    assert plan(0, 100, 0, 500, 0) == [Segment(-1, 0, 100)]


def test_of_a_piece_the_first_least_most_and_last_stay() -> None:
    points = [(n, n, float(n), 0.0, float(value)) for n, value in enumerate([5, 1, 7, 9, 2, 3])]
    assert [point[0] for point in reduced(points)] == [0, 1, 3, 5]
    assert reduced(points[:3]) == points[:3]
    assert thinned(points, 6) == points
    assert len(thinned(points * 100, 40)) <= 40


def test_the_route_tells_series_of_several_jobs_and_then_what_is_new(world: World) -> None:
    ids = [world.finished(num_metrics=30), world.running()]
    world.runtime.tell(ids[1], "metrics", {"train/loss": 0.5, "comm/bytes_up": 8.0}, step=3)
    world.runtime.tell(ids[1], "decision", {"sync": True, "reason": "x", "round": 0, "scores": {"0": 0.1, "1": 0.2}})
    until(lambda: world.job(ids[1])["last_sequence"] == 3)
    asked = {"jobs": ",".join(ids), "names": "train/loss,decision/sync,sync/grad_delta"}
    page = world.call("GET", "/api/v1/metrics/series", "viewer", params=asked).json()
    first, second = page["jobs"]
    assert [(series["name"], series["count"]) for series in first["series"]] == [("train/loss", 30)]
    assert first["series"][0]["value"][:2] == [1.0, 0.5]
    assert (first["series"][0]["is_sampled"], first["is_terminal"], second["state"]) == (False, True, "RUNNING")
    assert [(series["name"], series["value"]) for series in second["series"]] == [
        ("train/loss", [0.5]), ("decision/sync", [1.0]),
    ]  # fmt: skip
    assert second["series"][0]["bytes"] == [8.0]
    assert page["next_after"] == [first["last"], second["last"]]
    by_worker = world.call("GET", "/api/v1/metrics/series", params={**asked, "by": "worker"}).json()["jobs"][1]
    assert [(series["worker"], series["value"]) for series in by_worker["series"]] == [(0, [0.1]), (1, [0.2])]
    after = ",".join(map(str, page["next_after"]))
    new = world.call("GET", "/api/v1/metrics/series", params={**asked, "after": after}).json()
    assert [job["series"] for job in new["jobs"]] == [[], []]
    assert new["next_after"] == page["next_after"]
    world.runtime.tell(ids[1], "metrics", {"train/loss": 0.25}, step=4)
    until(lambda: world.job(ids[1])["last_sequence"] == 4)
    new = world.call("GET", "/api/v1/metrics/series", params={**asked, "after": after}).json()
    assert new["jobs"][0]["series"] == []
    assert [(series["step"], series["value"], series["bytes"]) for series in new["jobs"][1]["series"]] == [
        ([4], [0.25], [8.0])
    ]


def test_what_cannot_be_a_series_is_named(world: World) -> None:
    id = world.running()
    path = "/api/v1/metrics/series"
    good = {"jobs": id, "names": "train/loss"}
    for wrong, field in (
        ({"jobs": "NO SUCH"}, "query.jobs"),
        ({"names": "a,,b"}, "query.names"),
        ({"points": "3"}, "query.points"),
        ({"by": "stage"}, "query.by"),
        ({"after": "1,2"}, "query.after"),
        ({"after": "x"}, "query.after"),
        ({"step": "1"}, "query.step"),
    ):
        answer = world.call("GET", path, params={**good, **wrong})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    assert world.call("GET", path, params={**good, "jobs": f"{id},no-such-job"}).status_code == 404


def test_a_job_from_before_charts_is_reduced_when_it_is_first_asked_for(world: World, tmp_path: Path) -> None:
    id = world.finished()
    store = world.parts.store
    last = world.job(id)["last_sequence"]
    records = [
        Event(sequence=last + 1 + n, kind="metrics", step=n, time_s=n, data={"x": float(n)}) for n in range(3000)
    ]
    store.events.append(id, records, {})
    assert store.jobs.get(id).rolled == 0
    page = world.call("GET", "/api/v1/metrics/series", params={"jobs": id, "names": "x", "points": 100}).json()
    found = page["jobs"][0]["series"][0]
    assert (found["count"], found["min"], found["max"], found["is_sampled"]) == (3000, 0.0, 2999.0, True)
    assert store.jobs.get(id).rolled == (last + 3001) // UNIT * UNIT
    assert world.call("DELETE", f"/api/v1/jobs/{id}").status_code == 204
    until(lambda: not store.removal.pending())
