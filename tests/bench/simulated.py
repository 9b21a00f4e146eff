"""The table behind `make simulate`: digits on four workers under every strategy, on a simulated 100 Mbit/s
network.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from raysync.events import Event
from raysync.sim import Network, Pace, SimResult, Simulation
from raysync.spec import JobSpec, parse_spec
from raysync.tasks.workload import Workload

OUT = Path("out")
STEPS = 400
NETWORK = Network(bandwidth_bits_per_s=100e6, latency_s=0.001)
PACE = Pace(step_s=0.02, jitter=0.2)

STRATEGIES: dict[str, dict[str, Any]] = {
    "bsp": {"kind": "bsp"},
    "selsync 0.3": {"kind": "selsync", "delta": 0.3},
    "selsync 0.3, overlap": {"kind": "selsync", "delta": 0.3, "overlap": True},
    "selsync 0.3, onebit": {"kind": "selsync", "delta": 0.3},
    "ssp 3": {"kind": "ssp", "staleness_bound": 3},
    "fedavg 1, 0.25": {"kind": "fedavg", "local_epochs": 0.25},
    "local_sgd 8": {"kind": "local_sgd", "sync_every": 8},
    "diloco 20": {"kind": "diloco", "sync_every": 20},
}

COMPRESSION = {"selsync 0.3, onebit": {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}}
"""DoubleSqueeze on both passes, for the rows that have it."""


def digits_job(strategy: dict[str, Any], **changes: Any) -> JobSpec:
    """Return the demonstration's job under a strategy."""
    return parse_spec(
        {
            "name": "digits",
            "task": {"kind": "digits"},
            "strategy": strategy,
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
            "data": {"batch_size": 32},
            "scale": {"workers": 4, "shards": 2, "block_bytes": 16384},
            "budget": {"steps": STEPS},
            "eval": {"every": 10},
            "seed": 7,
            **changes,
        }
    )


def simulate(spec: JobSpec, workload: Workload, progress: Progress | None = None, label: str = "") -> SimResult:
    """Run a job in the simulator, with a bar that shows step, loss, accuracy and virtual time while it runs."""
    if progress is None:
        return Simulation(spec, network=NETWORK, pace=PACE, workload=workload).run()
    bar = progress.add_task(label, total=spec.budget.steps, note="")
    latest: dict[str, float] = {}

    def show(event: Event, now_s: float) -> None:
        if event.kind == "metrics":
            latest.update(event.data)
            loss, accuracy = latest.get("train/loss", 0.0), latest.get("eval/accuracy", 0.0)
            note = f"loss {loss:.3f} accuracy {accuracy:.3f} {now_s:4.1f} s"
            progress.update(bar, completed=min(event.step + 1, spec.budget.steps), note=note)

    return Simulation(spec, network=NETWORK, pace=PACE, workload=workload, on_event=show).run()


def time_to(result: SimResult, accuracy: float) -> float | None:
    """Return the virtual time of the first evaluation at least this accurate."""
    return next((time_s for time_s, _, found in result.eval_times if found["eval/accuracy"] >= accuracy), None)


def main() -> int:
    """Run the demonstration."""
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    console = Console()
    workload = Workload(digits_job({"kind": "bsp"}).task.build())
    results: dict[str, SimResult] = {}
    columns = (
        TextColumn("{task.description:20s}"),
        BarColumn(12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        for label, strategy in STRATEGIES.items():
            spec = digits_job(strategy, compression=COMPRESSION.get(label, {}))
            results[label] = simulate(spec, workload, progress, label)
    console.print(_strategies_table(results))
    console.print(_placement_table(workload))
    chart = OUT / "simulated.png"
    _chart(results, chart)
    rows = {label: _row(result) for label, result in results.items()}
    (OUT / "simulated.json").write_text(json.dumps(rows, indent=1))
    console.print(f"Chart: {chart}    Numbers: {OUT / 'simulated.json'}")
    return 0


def _row(result: SimResult) -> dict[str, float | None]:
    return {
        "accuracy": result.metrics["eval/accuracy"],
        "lssr": result.lssr if result.rounds else None,
        "bytes": float(result.bytes_up + result.bytes_down),
        "virtual_time_s": result.virtual_time_s,
        "time_to_95_s": time_to(result, 0.95),
    }


def _strategies_table(results: dict[str, SimResult]) -> Table:
    table = Table(title=f"digits, 4 workers, 2 shards, {STEPS} steps, simulated 100 Mbit/s")
    for heading in ("strategy", "accuracy", "LSSR", "MB sent", "virtual time", "time to 95 %"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    for label, result in results.items():
        row = _row(result)
        table.add_row(
            label,
            f"{100 * (row['accuracy'] or 0):.1f} %",
            "-" if row["lssr"] is None else f"{row['lssr']:.2f}",
            f"{(row['bytes'] or 0) / 1e6:.1f}",
            f"{row['virtual_time_s']:.1f} s",
            "-" if row["time_to_95_s"] is None else f"{row['time_to_95_s']:.1f} s",
        )
    return table


def _placement_table(workload: Workload) -> Table:
    from tests.bench.placement import SETTINGS, measure

    table = Table(title="data placement when the data arrives sorted by label")
    for heading in ("setting", "SelDP", "DefDP"):
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    for label in SETTINGS:
        seldp, defdp = (measure(label, partition, workload)["accuracy"] for partition in ("seldp", "defdp"))
        table.add_row(label, f"{100 * seldp:.1f} %", f"{100 * defdp:.1f} %")
    return table


def _chart(results: dict[str, SimResult], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (by_time, by_bytes) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    labels = list(results)
    for row, (label, result) in enumerate(results.items()):
        accuracies = [100 * found["eval/accuracy"] for _, _, found in result.eval_times]
        (line,) = by_time.plot([time_s for time_s, _, _ in result.eval_times], accuracies, label=label, linewidth=1.6)
        total = (result.bytes_up + result.bytes_down) / 1e6
        by_bytes.barh(row, total, color=line.get_color())
        by_bytes.text(1.15 * total, row, f"{total:.1f} MB, {accuracies[-1]:.1f} %", va="center", fontsize=8)
    by_time.set(xlabel="virtual time, s", ylabel="evaluation accuracy, %", ylim=(85, 99))
    by_time.set_title("accuracy over time at 100 Mbit/s")
    by_time.legend(fontsize=8, loc="lower right")
    by_bytes.set(
        xlabel="MB sent, all workers", xscale="log", xlim=(0.1, 2000), title="bytes, and the accuracy they bought"
    )
    by_bytes.set_yticks(range(len(labels)), labels, fontsize=8)
    by_bytes.invert_yaxis()
    for axes in (by_time, by_bytes):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)
