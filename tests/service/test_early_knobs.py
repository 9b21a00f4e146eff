"""Knobs turned before a job runs: taken at once, in force from its first step on, and never lost on the way there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raysync.errors import RuntimeLost
from raysync.ports import Launch
from tests.service.conftest import World, until


def turn(world: World, id: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return world.call("PATCH", f"/api/v1/jobs/{id}/knobs", json=body, headers=headers or {})


def test_knobs_turn_before_there_is_anything_to_turn_them_on(world: World) -> None:
    world.runtime.lose_cluster()
    id = world.submit()
    first = turn(world, id, values={"delta": 0.5}, expected_version=0)
    assert (first.status_code, first.json()["version"], first.headers["etag"]) == (200, 1, '"1"')
    assert (first.json()["before"], first.json()["version_in_force"]) == ({"delta": 0.3}, 0)
    assert turn(world, id, values={"delta": 0.6}, dry_run=True).json()["version"] == 2
    assert turn(world, id, values={"delta": 0.7}, expected_version=0).status_code == 409
    assert turn(world, id, {"If-Match": '"0"'}, values={"delta": 0.7}).status_code == 412
    assert turn(world, id, values={"staleness_bound": 2}).status_code == 422
    assert world.call("PUT", f"/api/v1/jobs/{id}/workers", json={"count": 9}).status_code == 422
    assert world.call("PUT", f"/api/v1/jobs/{id}/workers", json={"count": 3}).status_code == 202
    assert world.call("POST", f"/api/v1/jobs/{id}/pause").status_code == 202
    found = world.call("GET", f"/api/v1/jobs/{id}/knobs").json()
    assert (found["version"], found["version_in_force"]) == (3, 0)
    assert found["values"].items() >= {"delta": 0.5, "workers": 3, "pause": True}.items()

    world.runtime.cluster = "first"
    until(lambda: id in world.runtime.alive)
    board = world.runtime.alive[id].board
    until(lambda: board.knobs.version == 3)
    assert board.knobs.values.items() >= {"delta": 0.5, "workers": 3, "pause": True}.items()
    until(lambda: world.call("GET", f"/api/v1/jobs/{id}/knobs").json()["version_in_force"] == 3)
    until(lambda: world.parts.store.jobs.get(id).launched_on == "first")
    later = turn(world, id, {"If-Match": '"3"'}, values={"delta": 0.1})
    assert (later.status_code, later.json()["version"]) == (200, 4)


def test_a_turn_while_the_job_is_being_started_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, launching = world.runtime.launch, list[Launch]()

    async def slowly(order: Launch) -> str:
        launching.append(order)
        await asyncio.sleep(0.5)
        cluster = await launch(order)
        await asyncio.sleep(0.5)
        return cluster

    monkeypatch.setattr(world.runtime, "launch", slowly)
    id = world.submit()
    until(lambda: bool(launching))
    assert turn(world, id, values={"delta": 0.5}).status_code == 200, "its order has left without it"
    until(lambda: id in world.runtime.alive)
    assert turn(world, id, values={"delta": 0.6}).status_code == 200, "it runs, and nobody has noted it"
    until(lambda: world.runtime.alive[id].board.knobs.version == 2)
    assert world.runtime.alive[id].board.knobs.values["delta"] == 0.6
    assert turn(world, id, values={"delta": 0.7}, expected_version=2).json()["version"] == 3


def test_a_turn_between_a_start_and_its_note_is_handed_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, answers = world.runtime.launch, list[str]()

    async def unheard(order: Launch) -> str:
        answers.append(await launch(order))
        if len(answers) == 1:
            world.runtime.cluster = None
            raise RuntimeLost("the answer was lost")
        return answers[-1]

    monkeypatch.setattr(world.runtime, "launch", unheard)
    id = world.submit()
    until(lambda: bool(answers))
    assert turn(world, id, values={"delta": 0.5}).status_code == 200
    world.runtime.cluster = "first"
    until(lambda: world.runtime.alive[id].board.knobs.version == 1)
    assert world.runtime.alive[id].board.knobs.values["delta"] == 0.5
    until(lambda: world.parts.store.jobs.get(id).launched_on == "first")
