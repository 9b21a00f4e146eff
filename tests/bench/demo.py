"""The demonstration behind `make demo`: the service, three jobs over REST on a slow line, one of them steered meanwhile.

Starts `raysync serve` on a Ray and a SQLite file of its own, submits BSP, BSP with DoubleSqueeze and SelSync with it, each
held to 20 Mbit/s, follows their streams, turns SelSync's threshold half-way, prints what that did, and leaves nothing
running. The settings are the defaults, the same for all three.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from raysync.events import Decision, KnobChange, Metrics
from raysync.spec import JobSpec, parse_spec
from service.cli.progress import ProgressLine
from service.cli.short import size
from service.client import Client
from service.http.schemas import EventPublic
from tests.serving import Service

OUT = Path("out")
STEPS = 300
LIMIT_MBIT = 20
TARGET = 0.94
ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
CASES: dict[str, dict[str, Any]] = {
    "bsp": {"strategy": {"kind": "bsp"}},
    "bsp + onebit": {"strategy": {"kind": "bsp"}, "compression": ONEBIT},
    "selsync + onebit": {"strategy": {"kind": "selsync"}, "compression": ONEBIT},
}
TURNED = "selsync + onebit"
DELTA = 0.02
"""Half-way, SelSync's threshold becomes this: most steps exceed it."""


class Turn(NamedTuple):
    """A knob that was turned, and what came of it."""

    step: int
    waited_steps: int
    lssr_before: float
    """Share of local steps in the part before."""
    lssr_after: float


def main() -> int:
    """Run the jobs, print the table, save the chart."""
    OUT.mkdir(exist_ok=True)
    console, started_s = Console(), time.monotonic()
    results: dict[str, dict[str, Any]] = {}
    turn: Turn | None = None
    picture = ""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), warm=7)
        console.print(f"starting the service, its Ray and its database at {service.url} ...")
        try:
            with service.start() as client:
                for label, fields in CASES.items():
                    job = client.submit(_job(fields))
                    console.print(f"[dim]POST  [/dim] /api/v1/jobs -> {job.id}", highlight=False)
                    events = _follow(client, job.id, label, console)
                    results[label] = _numbers(client.job(job.id), events)
                    if label == TURNED:
                        turn = _turn(events)
                        picture = _page_picture(service, job.id, OUT / "demo-page.png")
            service.interrupt()
        finally:
            service.close()
    console.print(_table(results))
    assert turn is not None
    console.print(_sentence(results))
    console.print(
        f"Steered while it ran: delta auto -> {DELTA} at step {turn.step} ({turn.waited_steps} decisions after the request): LSSR "
        f"{turn.lssr_before:.2f} before, {turn.lssr_after:.2f} after. (LSSR: share of steps without synchronisation.)"
    )
    _chart(results, turn, OUT / "demo.png")
    (OUT / "demo.json").write_text(json.dumps({**results, "turn": turn._asdict()}, indent=1))
    console.print(
        f"{time.monotonic() - started_s:.0f} s in all; nothing is left running.  Chart: out/demo.png   Numbers: out/demo.json   "
        f"Page: {picture}"
    )
    return 0


def _page_picture(service: Service, id: str, path: Path) -> str:
    """Leave a picture of the page's view of a job, where there is a browser; return where it is, or why it is not."""
    from playwright.sync_api import Error as BrowserError

    from service.page.fetch import is_there
    from tests.page.browser import Browser, chromium
    from tests.page.shots import whole_view

    path.unlink(missing_ok=True)
    if chromium() is None:
        return "no picture (there is no chromium here: apt-get install chromium)"
    if not is_there():
        return "no picture (the page's libraries are not there: python -m service.page.fetch)"
    token = json.loads((service.folder / "data" / "client.json").read_text())["token"]
    try:
        with Browser() as browser, browser.tab(service.url, token) as tab:
            tab.open(f"jobs/{id}")
            tab.until("n => document.querySelector('#chart-loss .plot')?.plot?.data[0].length >= n", STEPS)
            whole_view(tab, path)
    except (BrowserError, AssertionError) as error:
        return f"no picture ({str(error).splitlines()[0]})"
    return str(path)


def _job(fields: dict[str, Any]) -> JobSpec:
    """Return one of the jobs: alike but for strategy and codec."""
    common: dict[str, Any] = {
        "name": "digits",
        "task": {"kind": "digits", "hidden": [256]},
        "optimizer": {"kind": "sgd", "lr": 0.2},
        "scale": {"workers": 4, "shards": 2, "cpus_per_worker": 0.5},
        "budget": {"steps": STEPS},
        "eval": {"every": 10},
        "transport": {"limit_mbit": LIMIT_MBIT},
        "seed": 7,
    }
    return parse_spec({**common, **fields})


def _follow(client: Client, id: str, label: str, console: Console) -> list[EventPublic]:
    """Follow a job's stream to its end; half-way, turn the threshold of the one that has it."""
    events, is_turned = [], label != TURNED
    with ProgressLine(label, STEPS, console) as line:
        for event in client.follow(id):
            events.append(event)
            line.show(event.body, event.step)
            if not is_turned and isinstance(event.body, Metrics) and event.step >= STEPS // 2:
                is_turned = True
                knobs = client.turn(id, delta=DELTA)
                console.print(
                    f"[dim]PATCH [/dim] /api/v1/jobs/{id}/knobs delta={DELTA} -> version {knobs.version}",
                    highlight=False,
                )
    job = client.job(id)
    if job.state.value != "SUCCEEDED":
        raise RuntimeError(f"{label} {job.state.value}: {job.reason}")
    return events


def _numbers(job: Any, events: list[EventPublic]) -> dict[str, Any]:
    told = [(event, event.body) for event in events]
    metrics = [(event, body.values) for event, body in told if isinstance(body, Metrics)]
    steps = [event for event, values in metrics if "train/loss" in values]
    reached = (event.time_s for event, values in metrics if (values.get("eval/accuracy") or 0) >= TARGET)
    to_target_s = next((time_s - steps[0].time_s for time_s in reached), None)
    return {
        "to_target_s": to_target_s,
        "accuracy": job.metrics["eval/accuracy"],
        "lssr": job.metrics["sync/lssr"],
        "bytes": job.metrics["comm/bytes_up"] + job.metrics["comm/bytes_down"],
        "train_s": steps[-1].time_s - steps[0].time_s,
        "link": job.runs["link"],
        "curve": [
            (event.time_s - steps[0].time_s, values["eval/accuracy"])
            for event, values in metrics
            if "eval/accuracy" in values
        ],
        "syncs": [event.step for event, body in told if isinstance(body, Decision) and body.sync],
    }


def _turn(events: list[EventPublic]) -> Turn:
    told = [(event.step, event.body) for event in events]
    ((turned_step, knobs),) = [(step, body) for step, body in told if isinstance(body, KnobChange)]
    decided = {step: body.sync for step, body in told if isinstance(body, Decision)}
    parts = ([not sync for step, sync in decided.items() if (step < turned_step) is before] for before in (True, False))
    before, after = (sum(local) / len(local) for local in parts)
    return Turn(turned_step, turned_step - knobs.asked_step, before, after)


def _sentence(results: dict[str, dict[str, Any]]) -> str:
    """Say what the table shows, whichever row wins."""
    dense = results["bsp"]
    best = min(results, key=lambda label: results[label]["to_target_s"] or float("inf"))
    if dense["to_target_s"] is None or results[best]["to_target_s"] is None:
        return f"Not every row reached {100 * TARGET:.0f} %: compare bytes and accuracy at the end."
    faster, fewer = (dense[name] / results[best][name] for name in ("to_target_s", "bytes"))
    return (
        f"On lines of {LIMIT_MBIT} Mbit/s {best} is first at {100 * TARGET:.0f} % accuracy, {faster:.1f} times as fast as dense bsp, "
        f"with {fewer:.0f} times fewer bytes. All processes share this machine; only what they send to each other is slow."
    )


def _table(results: dict[str, dict[str, Any]]) -> Table:
    title = f"digits over REST: 4 workers, 2 shards, {STEPS} steps, each process sends at most {LIMIT_MBIT} Mbit/s"
    table = Table(title=title)
    columns = ("strategy", f"time to {100 * TARGET:.0f} %", "all steps", "payload sent", "accuracy", "LSSR")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    for label, found in results.items():
        table.add_row(
            label,
            "not reached" if found["to_target_s"] is None else f"{found['to_target_s']:.1f} s",
            f"{found['train_s']:.1f} s",
            size(found["bytes"]),
            f"{100 * found['accuracy']:.1f} %",
            f"{found['lssr']:.2f}",
        )
    return table


def _chart(results: dict[str, dict[str, Any]], turn: Turn, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(6.4, 6.0), height_ratios=(3, 1))
    for label, found in results.items():
        times, accuracies = zip(*found["curve"], strict=True)
        upper.plot(times, [100 * accuracy for accuracy in accuracies], label=f"{label}: {size(found['bytes'])} sent")
    upper.axhline(100 * TARGET, color="grey", linestyle=":", linewidth=1)
    upper.set(xlabel="seconds since the first step", ylabel="evaluation accuracy, %", xscale="log", ylim=(50, 100))
    upper.set_title(f"digits over REST, 4 workers, lines of {LIMIT_MBIT} Mbit/s")
    upper.legend(loc="lower right")
    syncs = results[TURNED]["syncs"]
    lower.hist(syncs, bins=range(0, STEPS + 1, 20), color="tab:orange")
    lower.set(xlabel="step", ylabel="syncs\nin 20 steps", ylim=(0, 21), xlim=(0, STEPS))
    lower.axvline(turn.step, color="grey", linestyle="--", linewidth=1)
    lower.text(turn.step - 4, 14, f"selsync: delta auto → {DELTA}", color="grey", ha="right")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)
