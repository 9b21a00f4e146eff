"""The demonstration behind `make demo`: BSP beside SelSync with DoubleSqueeze, on real Ray actors on this machine."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from raysync.progress import ProgressLine, size
from tests.bench.simulated import digits_job

OUT = Path("out")
STEPS = 400
ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
CASES: dict[str, dict[str, Any]] = {
    "bsp": {"strategy": {"kind": "bsp"}},
    "selsync + onebit": {"strategy": {"kind": "selsync", "delta": 0.3}, "compression": ONEBIT},
}


def main() -> int:
    """Run both jobs, print the table, save the chart."""
    import ray

    from actors import fit

    OUT.mkdir(exist_ok=True)
    console, started_s = Console(), time.monotonic()
    console.print("starting a Ray of its own ...")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    results = {}
    try:
        with tempfile.TemporaryDirectory() as storage:
            for label, fields in CASES.items():
                spec = digits_job(**fields, budget={"steps": STEPS})
                with ProgressLine(label, STEPS, console) as line:
                    result = fit(
                        spec,
                        storage_path=storage,
                        on_record=lambda record, line=line: line.show(record.kind, record.step, record.data),
                    )
                if result.error is not None:
                    raise result.error
                results[label] = _numbers(result)
    finally:
        ray.shutdown()
    console.print(_table(results))
    _chart(results, OUT / "demo.png")
    (OUT / "demo.json").write_text(json.dumps(results, indent=1))
    console.print(f"{time.monotonic() - started_s:.0f} s in all.  Chart: out/demo.png   Numbers: out/demo.json")
    return 0


def _numbers(result: Any) -> dict[str, Any]:
    metrics = [record for record in result.records() if record.kind == "metrics"]
    steps = [record for record in metrics if "train/loss" in record.data]
    return {
        "accuracy": result.metrics["eval/accuracy"],
        "lssr": result.metrics["sync/lssr"],
        "bytes": result.metrics["comm/bytes_up"] + result.metrics["comm/bytes_down"],
        "train_s": steps[-1].time_s - steps[0].time_s,
        "link": result.runs["link"],
        "curve": [(record.step, record.data["eval/accuracy"]) for record in metrics if "eval/accuracy" in record.data],
    }


def _table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=f"digits on Ray: 4 workers, 2 shards, {STEPS} steps, this machine")
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


def _chart(results: dict[str, dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.8))
    for label, found in results.items():
        steps, accuracies = zip(*found["curve"], strict=True)
        axes.plot(steps, [100 * accuracy for accuracy in accuracies], label=f"{label}: {size(found['bytes'])} sent")
    axes.set(xlabel="step", ylabel="evaluation accuracy, %", ylim=(80, 100), title="digits on Ray, 4 workers")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)
