"""The demonstration behind `make demo`: the service, two jobs over REST, one of them steered while it runs.

Starts `raysync serve` on a Ray and a SQLite file of its own, submits BSP and then SelSync with DoubleSqueeze, follows
their streams, turns SelSync's threshold half-way, prints what that did, and leaves nothing running.
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
from service.cli.progress import ProgressLine
from service.cli.short import size
from service.client import Client
from service.http.schemas import EventPublic
from tests.bench.simulated import digits_job
from tests.serving import Service

OUT = Path("out")
STEPS = 800
ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
CASES: dict[str, dict[str, Any]] = {
    "bsp": {"strategy": {"kind": "bsp"}},
    "selsync + onebit": {"strategy": {"kind": "selsync", "delta": 0.3}, "compression": ONEBIT},
}
TURNED = "selsync + onebit"
DELTA = 0.1


class Turn(NamedTuple):
    """A knob that was turned, and what came of it."""

    step: int
    waited_steps: int
    lssr_before: float
    """Share of local steps in the part before."""
    lssr_after: float


def main() -> int:
    """Run both jobs, print the tables, save the chart."""
    OUT.mkdir(exist_ok=True)
    console, started_s = Console(), time.monotonic()
    results: dict[str, dict[str, Any]] = {}
    turn: Turn | None = None
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        console.print(f"starting the service, its Ray and its database at {service.url} ...")
        try:
            with service.start() as client:
                for label, fields in CASES.items():
                    job = client.submit(digits_job(**fields, budget={"steps": STEPS}))
                    console.print(f"[dim]POST  [/dim] /api/v1/jobs -> {job.id}", highlight=False)
                    events = _follow(client, job.id, label, console)
                    results[label] = _numbers(client.job(job.id), events)
                    if label == TURNED:
                        turn = _turn(events)
            service.interrupt()
        finally:
            service.close()
    console.print(_table(results))
    assert turn is not None
    console.print(
        f"delta {CASES[TURNED]['strategy']['delta']} -> {DELTA} at step {turn.step} ({turn.waited_steps} decisions after the "
        f"request): LSSR {turn.lssr_before:.2f} before, {turn.lssr_after:.2f} after. (LSSR: share of steps without "
        "synchronisation.)"
    )
    _chart(results, turn, OUT / "demo.png")
    (OUT / "demo.json").write_text(json.dumps({**results, "turn": turn._asdict()}, indent=1))
    console.print(
        f"{time.monotonic() - started_s:.0f} s in all; nothing is left running.  Chart: out/demo.png   Numbers: out/demo.json"
    )
    return 0


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
    return {
        "accuracy": job.metrics["eval/accuracy"],
        "lssr": job.metrics["sync/lssr"],
        "bytes": job.metrics["comm/bytes_up"] + job.metrics["comm/bytes_down"],
        "train_s": steps[-1].time_s - steps[0].time_s,
        "link": job.runs["link"],
        "curve": [(event.step, values["eval/accuracy"]) for event, values in metrics if "eval/accuracy" in values],
        "syncs": [event.step for event, body in told if isinstance(body, Decision) and body.sync],
    }


def _turn(events: list[EventPublic]) -> Turn:
    told = [(event.step, event.body) for event in events]
    ((turned_step, knobs),) = [(step, body) for step, body in told if isinstance(body, KnobChange)]
    decided = {step: body.sync for step, body in told if isinstance(body, Decision)}
    parts = ([not sync for step, sync in decided.items() if (step < turned_step) is before] for before in (True, False))
    before, after = (sum(local) / len(local) for local in parts)
    return Turn(turned_step, turned_step - knobs.asked_step, before, after)


def _table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=f"digits over REST: 4 workers, 2 shards, {STEPS} steps, this machine")
    for heading in ("strategy", "accuracy", "LSSR", "payload sent", "training time", "link"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    for label, found in results.items():
        table.add_row(
            label,
            f"{100 * found['accuracy']:.1f} %",
            f"{found['lssr']:.2f}",
            size(found["bytes"]),
            f"{found['train_s']:.1f} s",
            found["link"],
        )
    return table


def _chart(results: dict[str, dict[str, Any]], turn: Turn, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(6.4, 5.2), height_ratios=(3, 1), sharex=True)
    for label, found in results.items():
        steps, accuracies = zip(*found["curve"], strict=True)
        upper.plot(steps, [100 * accuracy for accuracy in accuracies], label=f"{label}: {size(found['bytes'])} sent")
    upper.set(ylabel="evaluation accuracy, %", ylim=(80, 100), title="digits over REST, 4 workers")
    upper.legend(loc="lower right")
    syncs = results[TURNED]["syncs"]
    lower.hist(syncs, bins=range(0, STEPS + 1, 20), color="tab:orange")
    lower.set(xlabel="step", ylabel="syncs\nin 20 steps", ylim=(0, 21))
    for axes in (upper, lower):
        axes.axvline(turn.step, color="grey", linestyle="--", linewidth=1)
        axes.grid(alpha=0.3)
    lower.text(turn.step - 8, 14, f"delta 0.3 → {DELTA}", color="grey", ha="right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)
