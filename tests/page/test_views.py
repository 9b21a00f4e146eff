"""The page in a browser, against a service whose jobs say what a test lets them say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.page import assets
from service.page import fetch as fetching
from tests.page.browser import Browser, Tab
from tests.page.served import Served, until

STUDY: dict[str, Any] = {
    "name": "ratios",
    "base": {
        "task": {"kind": "digits"},
        "strategy": {"kind": "selsync"},
        "compression": {"push": {"kind": "topk", "ratio": 0.05}},
    },
    "space": {"strategy.delta": {"low": 0.1, "high": 0.5}},
    "floor": {"metric": "eval/accuracy", "at_least": 0.9},
    "trials": 3,
}
MESH: dict[str, Any] = {
    "name": "mesh",
    "task": {"kind": "char_lm", "depth": 4},
    "strategy": {"kind": "async_sparse"},
    "schedule": {"kind": "async_one_f_one_b"},
    "optimizer": {"kind": "lookahead"},
    "scale": {"workers": 2, "stages": 3},
}
SLIDER = "#chart-signal [role=slider]"


def chart(tab: Tab, id: str) -> list[list[float | None]]:
    """Return what a chart shows."""
    found: list[list[float | None]] = json.loads(
        tab.page.evaluate("id => JSON.stringify(document.querySelector(`#${id} .plot`).plot.data)", id)
    )
    return found


def shows(tab: Tab, id: str, points: int) -> None:
    """Wait until a chart has so many places."""
    tab.page.locator(f"#{id}").scroll_into_view_if_needed()
    tab.until("([id, n]) => document.querySelector(`#${id} .plot`)?.plot?.data[0].length === n", [id, points])


@pytest.fixture(scope="module")
def job(served: Served) -> str:
    """A job with 120 steps behind it."""
    id = served.running()
    served.train(id, 0, 120)
    until(lambda: served.call("GET", f"/jobs/{id}")["step"] == 119)
    return id


def test_the_token_leaves_the_address_at_once_and_is_kept_for_the_tab(tab: Tab, job: str) -> None:
    tab.open()
    tab.see(f"tr[data-job='{job}']")
    assert "token" not in tab.page.url
    assert tab.token not in tab.page.content()
    tab.page.reload()
    tab.see(f"tr[data-job='{job}']")
    tab.tolerated.append("Failed to load resource")
    tab.page.evaluate("token => { location.hash = `#token=${token}&to=jobs/100%` }", tab.token)
    tab.see("main h1", "100%")
    assert "token" not in tab.page.url
    tab.go("")
    tab.see(f"tr[data-job='{job}']")
    tab.page.get_by_role("button", name="Leave").click()
    tab.see("h1", "Your token")
    tab.tolerated.append("401")
    tab.page.get_by_label("Paste a token").fill("rs_00000000_wrong")
    tab.page.get_by_role("button", name="Look").click()
    tab.see("[role=alert]", "does not take this token")
    tab.page.get_by_label("Paste a token").fill(tab.token)
    tab.page.get_by_role("button", name="Look").click()
    tab.see(f"tr[data-job='{job}']")


def test_the_list_is_live_and_can_be_searched(tab: Tab, served: Served, job: str) -> None:
    tab.open()
    row = tab.see(f"tr[data-job='{job}']")
    assert "120 of" not in row.inner_text()
    new = served.running(name="newcomer", labels={"team": "speech"})
    tab.see(f"tr[data-job='{new}'] .state", "running")
    served.train(new, 0, 30)
    tab.see(f"tr[data-job='{new}']", "29 of 1,000 steps")
    tab.see(f"tr[data-job='{new}'] svg.spark")
    sizes = "() => { const { scrollWidth, clientWidth } = document.querySelector('.jobs').parentElement; return [scrollWidth, clientWidth] }"
    needed, there = tab.page.evaluate(sizes)
    assert needed <= there, "all of a row is to be seen, its buttons too"
    tab.page.get_by_role("button", name=f"Pause {new}").click()
    until(lambda: served.call("GET", f"/jobs/{new}/knobs")["values"]["pause"])
    served.runtime.enter(new, "PAUSED")
    tab.page.get_by_role("button", name=f"Resume {new}").click()
    until(lambda: not served.call("GET", f"/jobs/{new}/knobs")["values"]["pause"])
    served.runtime.enter(new, "SUCCEEDED")
    tab.see(f"tr[data-job='{new}'] .state", "succeeded")
    tab.page.get_by_placeholder("Search by name").fill("newcom")
    tab.page.locator(f"tr[data-job='{job}']").wait_for(state="detached")
    assert "q=newcom" in tab.page.url
    tab.page.get_by_placeholder("Search by name").fill("")
    tab.see(f"tr[data-job='{job}'] button.label", "team: vision").click()
    tab.page.locator(f"tr[data-job='{new}']").wait_for(state="detached")
    assert "label=team" in tab.page.url


def test_charts_show_what_the_service_has(tab: Tab, served: Served) -> None:
    id = served.running(name="drawn")
    served.train(id, 0, 60)
    until(lambda: served.call("GET", f"/jobs/{id}")["step"] == 59)
    tab.open(f"jobs/{id}")
    shows(tab, "chart-loss", 60)
    served.train(id, 60, 40)
    shows(tab, "chart-loss", 100)
    answer = served.call("GET", f"/metrics/series?jobs={id}&names=train/loss,eval/accuracy&points=4000")["jobs"][0]
    told = {series["name"]: series for series in answer["series"]}
    assert chart(tab, "chart-loss") == [told["train/loss"]["step"], told["train/loss"]["value"]]
    assert chart(tab, "chart-accuracy") == [told["eval/accuracy"]["step"], told["eval/accuracy"]["value"]]
    tab.page.get_by_role("button", name="bytes sent").click()
    tab.until(
        "last => document.querySelector('#chart-loss .plot').plot.data[0].at(-1) === last",
        told["train/loss"]["bytes"][-1],
    )
    assert chart(tab, "chart-loss")[0] == told["train/loss"]["bytes"]
    assert "x=bytes" in tab.page.url
    tab.page.get_by_role("button", name="steps", exact=True).click()
    signals = served.call("GET", f"/metrics/series?jobs={id}&names=sync/grad_delta&by=worker")["jobs"][0]["series"]
    shows(tab, "chart-signal", 100)
    assert chart(tab, "chart-signal")[1:] == [series["value"] for series in signals]
    heat = tab.page.locator("#chart-heat canvas")
    heat.scroll_into_view_if_needed()
    assert tab.until("() => document.querySelector('#chart-heat canvas').heat?.workers") == [0, 1]


def told_by_worker(served: Served, id: str, name: str) -> list[dict[str, Any]]:
    """Return what the service has of a metric of each worker."""
    path = f"/metrics/series?jobs={id}&names={name}&by=worker&points=4000"
    found: list[dict[str, Any]] = served.call("GET", path)["jobs"][0]["series"]
    return found


def test_bytes_times_and_residuals_are_drawn_as_they_were_told(tab: Tab, served: Served) -> None:
    id = served.running(name="charted")
    served.train(id, 0, 60)
    until(lambda: served.call("GET", f"/jobs/{id}")["step"] == 59)
    tab.open(f"jobs/{id}")
    shows(tab, "chart-bytes", 59)
    _, up, down, dense = chart(tab, "chart-bytes")
    assert {*up, *down} == {4000.0, 2000.0}, "a step's share of running totals"
    assert dense[-1] == pytest.approx((26 * 360_000 - 24 * 60_000) / 50), "what the same would be without compression"
    shows(tab, "chart-time", 60)
    _, *stacked = chart(tab, "chart-time")
    wait, transfer, encode, compute = (column[1] or 0 for column in stacked)
    assert [compute, encode - compute, transfer - encode, wait - transfer] == pytest.approx([0.01, 0.002, 0.004, 0.002])
    shows(tab, "chart-residual", 60)
    (told,) = served.call("GET", f"/metrics/series?jobs={id}&names=feedback/residual_norm")["jobs"][0]["series"]
    assert chart(tab, "chart-residual") == [told["step"], told["value"]]


def test_steps_that_synchronised_have_a_tick(tab: Tab, served: Served) -> None:
    """Under the signals there is a tick of its own colour for every one of them, and for no other."""
    id = served.running(name="ticked")
    served.train(id, 0, 20, delta=0.36)
    tab.open(f"jobs/{id}")
    shows(tab, "chart-signal", 20)
    tab.painted()
    decisions = served.call("GET", f"/jobs/{id}/events?kind=decision&limit=100")["items"]
    synced = [event["step"] for event in decisions if event["data"]["sync"]]
    assert 0 < len(synced) < 20
    assert tab.page.evaluate(TICKS) == synced


TICKS = """() => {
  const u = document.querySelector('#chart-signal .plot').plot;
  const probe = document.body.appendChild(document.createElement('span'));
  probe.style.color = 'var(--tick)';
  const tick = getComputedStyle(probe).color.match(/[0-9.]+/g).map(Number);
  const foot = u.bbox.top + u.bbox.height - 3 * devicePixelRatio;
  const isTick = (x) => {
    const found = u.ctx.getImageData(Math.round(u.valToPos(x, 'x', true)), foot, 1, 1).data;
    return tick.slice(0, 3).every((part, n) => Math.abs(part - found[n]) < 40);
  };
  return u.data[0].filter(isTick);
}"""


def test_staleness_is_a_map_of_workers_over_time(tab: Tab, served: Served) -> None:
    id = served.running(name="stale", strategy={"kind": "ssp", "staleness_bound": 4})
    for step in range(40):
        for worker in range(3):
            stale = float(min(4, (step * (worker + 1)) % 6))
            served.runtime.tell(
                id, "metrics", {"staleness/last": stale, "train/loss": 1.0, "staleness/max": stale}, step, worker=worker
            )
    until(lambda: served.call("GET", f"/jobs/{id}")["last_sequence"] >= 121)
    tab.open(f"jobs/{id}")
    tab.see("#chart-heat h3", "Staleness by worker").scroll_into_view_if_needed()
    heat = tab.until("() => document.querySelector('#chart-heat canvas').heat")
    assert (heat["workers"], heat["from"], heat["to"], heat["most"]) == ([0, 1, 2], 0, 39, 4)
    for cells, told in zip(heat["cells"], told_by_worker(served, id, "staleness/last"), strict=True):
        columns = [int(step / (39 / len(cells))) for step in told["step"]]
        assert [cells[min(column, len(cells) - 1)] for column in columns] == told["value"]


def test_the_processes_of_a_job_are_listed(tab: Tab, served: Served) -> None:
    id = served.running(name="manned")
    for pid in (11, 12):
        start = {"name": "worker/1", "link": "tcp", "node": "n1", "node_id": "x", "pid": pid}
        served.runtime.tell(id, "actor", start)
    until(lambda: served.call("GET", f"/jobs/{id}")["last_sequence"] >= 3)
    row = served.call("GET", f"/jobs/{id}")["actors"][0]
    assert row["restarts"] == 1
    tab.open(f"jobs/{id}")
    heads = [one.inner_text() for one in tab.see(".actors thead").locator("th").all()]
    assert heads[:6] == ["Actor", "State", "Node", "Device", "A step takes", "Speed"]
    cells = [one.inner_text() for one in tab.page.locator(".actors tbody tr > *").all()]
    assert (cells[0], cells[2], cells[heads.index("Restarts")]) == ("worker/1", "n1 pid 12", "1")
    tab.see(".log li", "worker/1 is up on n1 (pid 12)")


IN_ORDER = """async () => {
  const { Series } = await import('/page/app/data/series.js');
  const { aligned } = await import('/page/app/data/aligned.js');
  const series = new Series('train/loss');
  const seed = { now: 7 };
  const next = (below) => (seed.now = (seed.now * 48271) % 2147483647) % below;
  for (let i = 0, step = 0; i < 40000; i++) {
    if (next(1500) === 0) step = Math.max(0, step - next(400));
    series.push(step++, i, i, next(1000));
    if (next(20) === 0) aligned([series], 'step', [0, 10]);
  }
  const newest = new Map(Array.from({ length: series.length }, (_, i) => [series.step[i], series.value[i]]));
  const steps = [...newest.keys()].sort((a, b) => a - b);
  const [xs, ys] = aligned([series], 'step', null, Infinity);
  return { held: series.length, same: JSON.stringify([xs, ys]) === JSON.stringify([steps, steps.map((step) => newest.get(step))]) };
}"""


def test_steps_that_come_again_after_a_recovery_are_drawn_in_their_place(tab: Tab) -> None:
    tab.open()
    tab.see("h1", "Jobs")
    found = tab.page.evaluate(IN_ORDER)
    assert found["same"]
    assert 8192 < found["held"] <= 16384, "old points are merged, and never more are held"


def test_what_a_job_has_made_is_listed_and_taken_along_by_operators(browser: Browser, served: Served) -> None:
    id = served.running(name="maker")
    served.runtime.folders[id].files = {"final/model.pt": ("model", b"weights", None)}
    for role in ("operator", "viewer"):
        with browser.tab(served.url, served.tokens[role]) as tab:
            tab.open(f"jobs/{id}")
            tab.see(".files summary").click()
            tab.see(".files tbody tr", "final/model.pt")
            take = tab.page.get_by_role("button", name="Download final/model.pt")
            if role == "viewer":
                assert take.count() == 0
                continue
            with tab.page.expect_download() as found:
                take.click()
            assert found.value.suggested_filename == "final-model.pt"
            assert found.value.path().read_bytes() == b"weights"


def test_zoom_stays_while_data_comes_in(tab: Tab, served: Served) -> None:
    id = served.running(name="zoomed")
    served.train(id, 0, 50)
    tab.open(f"jobs/{id}")
    shows(tab, "chart-loss", 50)
    tab.page.get_by_role("button", name="Zoom in").click()
    scale = (
        "() => { const { min, max } = document.querySelector('#chart-loss .plot').plot.scales.x; return [min, max] }"
    )
    tab.until("() => document.querySelector('#chart-loss .plot').plot.scales.x.max < 49")
    before = tab.page.evaluate(scale)
    assert before == [12.25, 36.75]
    served.train(id, 50, 50)
    tab.until("() => document.raysync.job.of('train/loss').length === 100")
    tab.painted()
    assert tab.page.evaluate(scale) == before
    tab.page.get_by_role("button", name="All", exact=True).click()
    shows(tab, "chart-loss", 100)
    assert tab.page.evaluate(scale) == [0, 99]
    tab.page.get_by_label("log axis").check()
    tab.until("() => document.querySelector('#chart-loss .plot').plot.scales.x.min === 1")
    tab.page.get_by_label("log scale").check()
    tab.until("() => document.querySelector('#chart-loss .plot').plot.scales.y.distr === 3")


def test_dragging_delta_turns_the_knob_and_marks_the_step(tab: Tab, served: Served) -> None:
    id = served.running(name="dragged")
    served.train(id, 0, 80)
    tab.open(f"jobs/{id}")
    shows(tab, "chart-signal", 80)
    line = tab.see(SLIDER)
    assert line.get_attribute("aria-valuenow") == "0.3"
    place = line.bounding_box()
    assert place is not None
    tab.page.mouse.move(place["x"] + 200, place["y"] + place["height"] / 2)
    tab.page.mouse.down()
    tab.page.mouse.move(place["x"] + 200, place["y"] - 25, steps=5)
    assert served.call("GET", f"/jobs/{id}/knobs")["version"] == 0, "nothing is turned before it is let go"
    tab.page.mouse.up()
    until(lambda: served.call("GET", f"/jobs/{id}/knobs")["version"] == 1)
    knobs = served.call("GET", f"/jobs/{id}/knobs")
    assert 0.3 < knobs["values"]["delta"] < 0.45
    tab.see("#chart-signal .under-chart", "in force since step 79")
    assert tab.page.get_attribute("#chart-signal .under-chart", "data-marks") == "79"
    assert float(line.get_attribute("aria-valuenow")) == knobs["values"]["delta"]
    served.train(id, 80, 20, knobs["values"]["delta"])
    shows(tab, "chart-signal", 100)
    tab.see(".log li", "delta 0.3 →")
    tab.see("#chart-signal").get_by_role("button", name="Undo").click()
    until(lambda: served.call("GET", f"/jobs/{id}/knobs")["values"]["delta"] == 0.3)
    tab.see("#chart-signal .under-chart", "delta 0.3 in force since step 99")
    line.focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    until(lambda: served.call("GET", f"/jobs/{id}/knobs")["values"]["delta"] < 0.3)


def test_knobs_pause_and_workers_are_turned_by_hand(tab: Tab, served: Served) -> None:
    id = served.running(name="steered")
    served.train(id, 0, 5)
    tab.open(f"jobs/{id}")
    tab.page.locator(".knobs input[name=lr]").fill("0.025")
    tab.page.get_by_role("button", name="Turn").click()
    until(lambda: served.call("GET", f"/jobs/{id}/knobs")["values"]["lr"] == 0.025)
    tab.page.get_by_role("button", name=f"Pause {id}").click()
    until(lambda: served.call("GET", f"/jobs/{id}/knobs")["values"]["pause"])
    served.runtime.enter(id, "PAUSED")
    tab.page.get_by_role("button", name=f"Resume {id}").click()
    until(lambda: not served.call("GET", f"/jobs/{id}/knobs")["values"]["pause"])
    served.runtime.enter(id, "RUNNING")
    tab.page.get_by_label("Workers", exact=True).fill("4")
    tab.page.get_by_role("button", name="Scale").click()
    until(lambda: served.call("GET", f"/jobs/{id}/knobs")["values"]["workers"] == 4)
    tab.page.on("dialog", lambda dialog: dialog.accept())
    tab.page.get_by_role("button", name=f"Stop {id}").click()
    until(lambda: served.runtime.alive[id].stopped is not None)


def test_a_knob_that_cannot_be_turned_says_why(tab: Tab, job: str) -> None:
    tab.tolerated.append("422")
    tab.open(f"jobs/{job}")
    tab.page.locator(".knobs input[name=lr]").fill("-1")
    tab.page.get_by_role("button", name="Turn").click()
    tab.see(".notice.bad", "lr")


def test_a_viewer_sees_no_controls(browser: Browser, served: Served, job: str) -> None:
    with browser.tab(served.url, served.tokens["viewer"]) as tab:
        tab.open(f"jobs/{job}")
        shows(tab, "chart-signal", 120)
        tab.see(".who", "viewer")
        tab.see(".delta-line")
        assert tab.page.locator("[role=slider]").count() == 0
        for name in ("Pause", "Stop", "Turn", "Scale", "Undo"):
            assert tab.page.get_by_role("button", name=name).count() == 0
        tab.go("")
        tab.see(f"tr[data-job='{job}']")
        assert tab.page.get_by_role("button", name=f"Stop {job}").count() == 0
        assert tab.page.get_by_role("link", name="New job").count() == 0
        tab.go("submit")
        tab.see("main", "that takes an operator's")


def test_compare_keeps_its_selection_in_the_link(tab: Tab, served: Served, job: str) -> None:
    other = served.running(name="rival", strategy={"kind": "bsp"})
    served.train(other, 0, 70)
    tab.open()
    for id in (job, other):
        tab.page.get_by_label(f"Compare {id}").check()
    tab.page.get_by_role("link", name="Compare 2").click()
    tab.see("h1", "Compare")
    shows(tab, "compare-train-loss", 120)
    tab.see(".differences tr", "strategy.kind")
    assert "strategy.delta" in tab.page.locator(".differences").inner_text()
    tab.page.get_by_role("button", name="comm/compression").click()
    shows(tab, "compare-comm-compression", 120)
    tab.page.get_by_label("log axis").check()
    tab.page.get_by_role("button", name="bytes sent").click()
    link = tab.page.url
    assert f"jobs={job},{other}" in link
    served.train(other, 70, 10)
    tab.until(
        "() => document.querySelector('#compare-train-loss .plot').plot.data[2].filter(y => y !== undefined && y !== null).length === 80"
    )
    tab.go("")
    tab.see("h1", "Jobs")
    tab.page.goto(link)
    shows(tab, "compare-comm-compression", 120)


def tell_stages(served: Served, id: str) -> None:
    """Let a mesh take twenty steps."""
    for step in range(20):
        values: dict[str, Any] = {"train/loss": 3.0 - 0.05 * step}
        for stage in range(3):
            values |= {f"pipeline/utilisation/{stage}": 0.5 + 0.1 * stage, f"pipeline/delay/{stage}": 2.0 - stage}
        served.runtime.tell(id, "metrics", values, step=step)


def test_a_mesh_shows_its_stages_and_replicas(tab: Tab, served: Served) -> None:
    id = served.running(**MESH)
    tell_stages(served, id)
    tab.open(f"mesh/{id}")
    assert tab.see(".mesh tbody tr").count() == 1
    assert tab.page.locator(".mesh tbody .cell").count() == 6
    tab.see(".mesh .cell", "70.0 %")
    tab.see(".mesh thead th", "delay 2")
    shows(tab, "mesh-pipeline-utilisation", 20)
    tab.go(f"jobs/{id}")
    tab.see("a.button", "Mesh")


def test_a_study_shows_its_front_and_hands_over_a_pick(tab: Tab, served: Served) -> None:
    study = served.call("POST", "/studies", json={"spec": STUDY})["id"]
    tab.open("studies")
    tab.see("tbody th a", study).click()
    tab.see(".state", "succeeded")
    tab.until("() => document.querySelectorAll('.trial').length === 3")
    assert tab.page.locator(".trial.on-front").count() == 2
    tab.see(".pick-name")
    tab.page.locator(".trial[data-trial='1']").hover()
    tab.see(".hover", "Trial 1")
    tab.page.get_by_role("button", name="Copy the smallest pick").click()
    copied = json.loads(tab.page.evaluate("() => navigator.clipboard.readText()"))
    assert copied == served.call("GET", f"/studies/{study}")["picks"]["smallest"]["spec"]
    tab.until("() => document.querySelector('#chart-volume .plot').plot.data[0].length === 3")
    tab.page.get_by_role("button", name="Submit the smallest pick").click()
    tab.see(".verdict.good", "would take")
    tab.go(f"studies/{study}")
    tab.page.locator(".trial[data-trial='2']").click()
    tab.until("() => location.hash.startsWith('#/jobs/')")


def test_the_form_refuses_while_typing_and_submits(tab: Tab, served: Served) -> None:
    tab.tolerated.append("422")
    tab.open("submit")
    tab.see(".verdict.good", "would take")
    workers = tab.page.locator("#field-scale-workers")
    workers.fill("0")
    tab.see(".verdict.bad code", "scale.workers")
    tab.see("#field-scale-workers-error")
    assert tab.page.get_by_role("button", name="Submit").is_disabled()
    workers.fill("3")
    tab.see(".verdict.good")
    tab.page.locator("#field-strategy").select_option("local_sgd")
    tab.page.locator("#field-strategy-sync_every").fill("5")
    tab.page.locator("#field-name").fill("by-hand")
    tab.until("() => JSON.parse(document.querySelector('#spec-text').value).strategy.sync_every === 5")
    tab.see(".verdict.good")
    text = tab.page.locator("#spec-text")
    text.fill("{")
    tab.see(".verdict.bad", "not JSON")
    text.fill(json.dumps({"name": "typed", "task": {"kind": "digits"}, "strategy": {"kind": "bsp"}}))
    tab.see(".verdict.good")
    tab.page.get_by_role("button", name="Submit").click()
    tab.until("() => location.hash.startsWith('#/jobs/typed-')")
    id = tab.page.url.rpartition("/")[2]
    assert served.call("GET", f"/jobs/{id}")["spec"]["strategy"]["kind"] == "bsp"


def test_every_example_of_the_form_is_a_job_the_service_takes(tab: Tab, served: Served) -> None:
    tab.open("submit")
    names = tab.see("select").locator("option").all_inner_texts()
    assert len(names) >= 4
    examples = tab.page.evaluate("async () => (await import('/page/app/data/examples.js')).EXAMPLES")
    assert list(examples) == names
    for name, spec in examples.items():
        assert served.call("POST", "/jobs", json={"spec": spec, "dry_run": True})["spec"], name


def test_the_keyboard_reaches_everything(tab: Tab, served: Served, job: str) -> None:
    tab.open()
    tab.see(f"tr[data-job='{job}']")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "Skip to content"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "main"
    link = tab.page.get_by_role("link", name=job)
    for _ in range(600):
        tab.page.keyboard.press("Tab")
        if link.evaluate("one => one === document.activeElement"):
            break
    tab.page.keyboard.press("Enter")
    tab.until("id => location.hash === `#/jobs/${id}`", job)


def test_colours_follow_the_readers_choice_and_are_kept(tab: Tab, job: str) -> None:
    tab.open(f"jobs/{job}")
    shows(tab, "chart-loss", 120)
    ink = "() => getComputedStyle(document.body).backgroundColor + document.querySelector('#chart-loss .plot').plot.series[1].stroke()"
    before = tab.page.evaluate(ink)
    for choice in ("light", "dark"):
        tab.page.get_by_role("button", name="auto" if choice == "light" else "light").click()
        assert tab.page.get_attribute("html", "data-theme") == choice
    tab.until(f"before => ({ink})() !== before", before)
    dark = tab.page.evaluate(ink)
    tab.page.reload()
    shows(tab, "chart-loss", 120)
    assert tab.page.evaluate(ink) == dark


def test_what_a_job_says_is_text_and_never_html(tab: Tab, served: Served) -> None:
    id = served.running(name="sly", labels={"<b>": "<img src=x onerror=alert(1)>"})
    served.runtime.tell(id, "notice", {"text": "<img src=x onerror=alert(1)><script>alert(2)</script>"})
    tab.open(f"jobs/{id}")
    tab.see(".log li", "<script>alert(2)</script>")
    assert tab.page.locator("main img, main script").count() == 0


def test_always_the_latest_follows_new_jobs(tab: Tab, served: Served, job: str) -> None:
    tab.open("latest")
    tab.see("main.job")
    new = served.running(name="newest")
    tab.see("h1", new)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A service of a test's own."""
    found = Served(tmp_path)
    yield found
    found.stop()


def test_a_restart_of_the_service_leaves_no_gap_and_no_double(browser: Browser, own: Served) -> None:
    id = own.running()
    own.train(id, 0, 40)
    with browser.tab(own.url, own.tokens["admin"]) as tab:
        tab.tolerated += ["Failed to load resource", "ERR_"]
        tab.open(f"jobs/{id}")
        shows(tab, "chart-loss", 40)
        own.stop()
        tab.see(".link", "reconnecting")
        own.train(id, 40, 25)
        own.start()
        tab.see(".notice", "Reconnected, going on after event")
        own.train(id, 65, 25)
        shows(tab, "chart-loss", 90)
        told = own.call("GET", f"/metrics/series?jobs={id}&names=train/loss&points=4000")["jobs"][0]["series"][0]
        assert chart(tab, "chart-loss") == [told["step"], told["value"]]
        assert tab.page.evaluate("document.raysync.job.missed") == 0
        assert tab.page.evaluate("document.raysync.job.of('decision/sync').length") == 90
        tab.see(".link", "live")


def test_without_its_libraries_the_page_says_what_to_do_until_they_are_there(
    browser: Browser, own: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = tmp_path / "vendor"
    monkeypatch.setattr(assets, "VENDOR", vendor)
    assets._read_once.cache_clear()
    try:
        for scheme in ("dark", "light"):
            with browser.tab(own.url, own.tokens["admin"], color_scheme=scheme) as tab:
                tab.open()
                tab.see("h1", "The service runs; its page lacks four small libraries")
                tab.see("code", "python -m service.page.fetch")
                assert "token" not in tab.page.url
                assert not tab.axe()
                if scheme == "light":
                    shutil.copytree(fetching.VENDOR, vendor)
                    tab.page.reload()
                    tab.see("h1", "Jobs")
    finally:
        assets._read_once.cache_clear()


VIEWS = {
    "": "tr[data-job='{job}'] svg.spark",
    "jobs/{job}": "#chart-time .plot[data-points='120']",
    "jobs/{failed}": ".reason.problem details",
    "mesh/{mesh}": "#mesh-pipeline-utilisation .plot[data-points='20']",
    "compare?jobs={job},{mesh}": ".differences tbody tr",
    "studies": "tbody th a",
    "studies/{study}": ".pick .primary",
    "submit": ".verdict.good",
}
"""Each view, and what is there once it is filled."""


@pytest.fixture(scope="module")
def shown(served: Served, job: str) -> dict[str, str]:
    """A job for every view."""
    mesh = served.running(**MESH)
    tell_stages(served, mesh)
    failed = served.running(name="failed")
    served.runtime.enter(failed, "FAILED", "a worker raised an error\nTraceback (most recent call last):\n  ...")
    return {
        "job": job,
        "mesh": mesh,
        "failed": failed,
        "study": served.call("POST", "/studies", json={"spec": STUDY})["id"],
    }


def every_view(tab: Tab, shown: dict[str, str]) -> Iterator[str]:
    """Open each view and wait until it is filled."""
    for view, filled in VIEWS.items():
        tab.go(view.format(**shown))
        found = tab.page.locator(filled.format(**shown)).first
        found.wait_for(state="attached")
        found.scroll_into_view_if_needed()
        tab.painted()
        yield view


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_view(
    browser: Browser, served: Served, shown: dict[str, str], scheme: str
) -> None:
    found: dict[str, list[str]] = {}
    with browser.tab(served.url, served.tokens["admin"], color_scheme=scheme) as tab:
        tab.page.goto(tab.url)
        tab.see("h1", "Your token")
        found["token"] = tab.axe()
        tab.open()
        for view in every_view(tab, shown):
            tab.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            found[view] = tab.axe()
    assert not {view: problems for view, problems in found.items() if problems}


def test_a_phone_shows_every_view_without_scrolling_sideways(
    browser: Browser, served: Served, shown: dict[str, str]
) -> None:
    size = {"width": 390, "height": 844}
    with browser.tab(served.url, served.tokens["admin"], viewport=size, is_mobile=True, has_touch=True) as tab:
        tab.open()
        for view in every_view(tab, shown):
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390, view
