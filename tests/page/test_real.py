"""The page against `raysync serve` and a job that really trains on Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysync.spec import parse_spec
from service.client import Client
from tests.page.browser import Browser, Tab
from tests.page.test_views import SLIDER, chart
from tests.serving import Service, until

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]

JOB: dict[str, Any] = {
    "name": "real",
    "task": {"kind": "digits"},
    "strategy": {"kind": "selsync", "delta": 0.3},
    "compression": {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}},
    "scale": {"workers": 2, "max_workers": 3, "cpus_per_worker": 0.5},
    "budget": {"steps": 1_000_000},
    "eval": {"every": 20},
}


@pytest.fixture
def service(browser: Browser, tmp_path: Path) -> Iterator[Service]:
    """A service with a Ray of its own."""
    found = Service(tmp_path)
    yield found
    found.close()


def token_of(service: Service) -> str:
    return str(json.loads((service.folder / "data" / "client.json").read_text())["token"])


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_job_that_trains_is_drawn_and_steered(browser: Browser, service: Service, restarts: bool) -> None:
    client = service.start()
    assert f"page: {service.url}/#token=rs_" in service.log
    with browser.tab(service.url, token_of(service)) as tab:
        tab.open()
        tab.see("main", "No job yet")
        id = client.submit(parse_spec(JOB)).id
        tab.see(f"tr[data-job='{id}'] .state", "running")
        tab.page.get_by_role("link", name=id).click()
        tab.until("() => document.querySelector('#chart-signal .plot')?.plot?.data[0].length > 50")
        _turns_delta(tab, client, id)
        _pauses_and_scales(tab, client, id)
        if restarts:
            client = _restarted(tab, service, client)
        _draws_what_is_told(tab, client, id)
    client.close()


def _restarted(tab: Tab, service: Service, client: Client) -> Client:
    tab.tolerated += ["Failed to load resource", "ERR_"]
    service.kill()
    tab.see(".link", "reconnecting")
    client.close()
    client = service.start()
    tab.see(".notice", "Reconnected, going on after event")
    tab.see(".link", "live")
    return client


def _turns_delta(tab: Tab, client: Client, id: str) -> None:
    line = tab.see(SLIDER)
    line.scroll_into_view_if_needed()
    line.focus()
    tab.page.keyboard.press("PageUp")
    tab.page.keyboard.press("Enter")
    until(lambda: client.knobs(id).version == 1)
    assert client.knobs(id).values["delta"] != 0.3
    tab.until("() => document.querySelector('#chart-signal .under-chart').dataset.marks !== ''")
    (turn,) = client.events(id, kind="knobs").items
    assert tab.page.get_attribute("#chart-signal .under-chart", "data-marks") == str(turn.step)
    decisions = client.events(id, kind="decision", limit=2000, after=turn.sequence - 10).items
    first = next(event for event in decisions if event.knob_version == 1)
    assert first.step == turn.step, "the mark is at the first step that was decided with it"


def _pauses_and_scales(tab: Tab, client: Client, id: str) -> None:
    tab.page.get_by_role("button", name=f"Pause {id}").click()
    tab.see("main.job .state", "paused")
    tab.page.get_by_role("button", name=f"Resume {id}").click()
    tab.see("main.job .state", "running")
    tab.page.get_by_label("Workers", exact=True).fill("3")
    tab.page.get_by_role("button", name="Scale").click()
    until(lambda: client.job(id).workers == 3)
    tab.until("() => document.raysync.job.byWorker('sync/grad_delta').length === 3")


def _draws_what_is_told(tab: Tab, client: Client, id: str) -> None:
    """Hold the job, so that what is drawn and what is told are of the same moment."""
    client.pause(id)
    until(lambda: client.job(id).state.value == "PAUSED")
    last = client.job(id).last_sequence
    tab.until("n => document.raysync.job.lastSequence >= n", last)
    assert tab.page.evaluate("document.raysync.job.missed") == 0
    told = client.series([id], ["eval/accuracy"], points=4000).jobs[0].series[0]
    tab.page.locator("#chart-accuracy").scroll_into_view_if_needed()
    tab.until("n => document.querySelector('#chart-accuracy .plot').plot.data[0].at(-1) === n", told.step[-1])
    steps, values = chart(tab, "chart-accuracy")
    shown = dict(zip(steps, values, strict=True))
    assert shown.items() >= dict(zip(told.step, told.value, strict=True)).items()


@pytest.mark.matrix
def test_a_mesh_and_a_study_that_run_are_shown(browser: Browser, tmp_path: Path) -> None:
    from tests.page.shots import MESH, STUDY

    service = Service(tmp_path)
    try:
        with service.start() as client, browser.tab(service.url, token_of(service)) as tab:
            mesh = client.submit(parse_spec({**MESH, "budget": {"steps": 20}})).id
            tab.open(f"mesh/{mesh}")
            tab.see(".mesh .cell.alive")
            assert tab.page.locator(".mesh .cell").count() == 8
            until(lambda: client.job(mesh).is_terminal, 120)
            tab.see(".schedule .pass")
            study = client.submit_study({**STUDY, "trials": 4}).id
            tab.go(f"studies/{study}")
            until(lambda: client.study(study).is_terminal, 200)
            tab.until("n => document.querySelectorAll('.trials tbody tr').length === n", len(client.trials(study)))
            found = client.study(study)
            tab.until("n => document.querySelectorAll('.trial.on-front').length === n", len(found.front))
    finally:
        service.close()
