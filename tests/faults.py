"""Random fault schedules: a seed is a whole job with everything that goes wrong in it.

python -m tests.faults --seed 17        show one schedule again python -m tests.faults --count 10000    run many;
stops at the first that fails and prints its seed
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from functools import lru_cache
from typing import Any

import torch

from raysync.address import COORDINATOR, EVALUATOR, Address, Role, shard, worker
from raysync.sim import Fault, Network, Pace, random_faults
from raysync.sim.faults import Action, random_freezes
from raysync.spec import JobSpec, parse_spec
from raysync.tasks.workload import Workload
from tests.audit import AuditedSimulation

STRATEGIES: tuple[dict[str, Any], ...] = (
    {"kind": "bsp"},
    {"kind": "selsync", "warmup_steps": 2, "delta": 0.05},
    {"kind": "selsync", "warmup_steps": 2, "delta": 0.05, "overlap": True},
    {"kind": "selsync", "warmup_steps": 2, "delta": 0.05, "aggregate": "gradients"},
    {"kind": "selsync", "delta": 0.5, "signal": {"kind": "divergence"}},
    {"kind": "selsync", "signal": {"kind": "random", "rate": 0.4}, "max_interval": 4},
    {"kind": "ssp", "staleness_bound": 0},
    {"kind": "ssp", "staleness_bound": 2},
    {"kind": "fedavg", "local_epochs": 0.5},
    {"kind": "fedavg", "participation": 0.5, "sync_every": 3},
    {"kind": "local_sgd", "sync_every": 3},
    {"kind": "diloco", "sync_every": 4},
)

OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"kind": "sgd", "lr": 0.05},
    {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
    {"kind": "adam", "lr": 0.01},
)

CODECS: tuple[dict[str, Any], ...] = (
    {"kind": "identity"},
    {"kind": "onebit", "chunk": 32},
    {"kind": "topk", "ratio": 0.2},
    {"kind": "topk", "ratio": 0.1, "values": "fp32"},
    {"kind": "randomk", "ratio": 0.3},
    {"kind": "int8", "chunk": 32},
    {"kind": "qsgd", "chunk": 32, "levels": 8},
    {"kind": "bf16"},
)


TASKS: tuple[dict[str, Any], ...] = (
    {"kind": "quadratic", "dim": 10, "samples": 64},
    {"kind": "custom", "entrypoint": "tests.models:Odd"},
)
"""The second has BatchNorm, frozen and unused parameters, and a buffer of infinities."""


POISONED: dict[str, Any] = {"kind": "custom", "entrypoint": "tests.models:Poisoned"}
"""Some of its batches come to NaN, and count for nothing."""


@lru_cache(maxsize=3)
def _workload(task: str) -> Workload:
    return Workload(parse_spec({"task": json.loads(task)}).task.build())


def _task(seed: int) -> dict[str, Any]:
    if random.Random(f"poison/{seed}").random() < 0.15:
        return POISONED
    return random.Random(f"task/{seed}").choice(TASKS)


def _deadline(seed: int, strategy: dict[str, Any]) -> float | None:
    """Return how long a step waits for the late, where it does not wait for ever; a step takes 0.02 s, some thrice that."""
    choose = random.Random(f"deadline/{seed}")
    job = {"task": TASKS[0], "strategy": strategy}
    may_leave = not parse_spec(job).model_copy(update={"straggler_deadline": 1.0}).why_it_waits
    return choose.choice((None, 0.002, 0.01, 0.03)) if may_leave else None


def make_spec(seed: int) -> JobSpec:
    """Return the job a seed stands for."""
    choose = random.Random(f"job/{seed}")
    workers = choose.choice((1, 2, 2, 3, 4))
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    averages = strategy["kind"] not in ("bsp", "ssp") and strategy.get("aggregate") != "gradients"
    if averages and random.Random(f"landing/{seed}").random() < 0.5:
        strategy = {**strategy, "landing": "late"}
    return parse_spec(
        {
            "name": f"faults-{seed}",
            "task": _task(seed),
            "strategy": strategy,
            "inner_state": random.Random(f"inner/{seed}").choice(("keep", "average", "reset")) if averages else "keep",
            "optimizer": choose.choice(OPTIMIZERS),
            "compression": {
                "push": choose.choice(CODECS),
                "pull": choose.choice(CODECS),
                "dense_rounds": choose.choice((0, 0, 2)),
                "ramp_rounds": choose.choice((0, 0, 3)),
            },
            "lr_schedule": choose.choice(({"kind": "constant"}, {"kind": "cosine", "warmup_steps": 2})),
            "data": {"batch_size": choose.choice((2, 4)), "partition": choose.choice(("seldp", "defdp"))},
            "scale": {
                "workers": workers,
                "max_workers": workers + 2,
                "shards": choose.choice((1, 2)),
                "replicas": random.Random(f"replicas/{seed}").choice((0, 1, 1)),
                "block_bytes": 64,
            },
            "budget": {"steps": 10},
            "checkpoint": {"every_rounds": choose.choice((None, 3))},
            "eval": {"every": 5, "on": random.Random(f"eval/{seed}").choice(("workers", "evaluator"))},
            "straggler_deadline": _deadline(seed, strategy),
            "seed": seed,
        }
    )


def _late_faults(spec: JobSpec) -> list[Fault]:
    """Return what happens to the word that somebody is to catch up, where it may be said."""
    choose = random.Random(f"late/{spec.seed}")
    count = 0 if spec.straggler_deadline is None else choose.choice((0, 1, 2))
    actions: tuple[Action, ...] = ("drop", "duplicate", "delay", "reorder")
    drawn = [(choose.choice(actions), choose.randint(1, 4), choose.uniform(0.02, 1.0)) for _ in range(count)]
    return [Fault(action=action, where="CatchUp", nth=nth, delay_s=delay_s) for action, nth, delay_s in drawn]


def node_of(simulation: AuditedSimulation, choose: random.Random) -> list[Address]:
    """Return what may be on one node: never a shard and its backup."""
    view = simulation.coordinator.view
    found = [worker(index) for index in sorted(simulation.workers) if choose.random() < 0.5]
    for slot in range(simulation.spec.scale.shards):
        serving = view.servers[slot] if view.servers else shard(slot)
        backup = view.backups[slot] if view.backups else None
        found += [who for who in (choose.choice((None, serving, backup)),) if who is not None]
    found += [who for who in (COORDINATOR, EVALUATOR) if choose.random() < 0.4]
    choose.shuffle(found)
    return found


def trouble(simulation: AuditedSimulation, seed: int) -> None:
    """Let processes stand still, whole nodes die, and parts of the cluster lose sight of the rest for a while."""
    choose = random.Random(f"trouble/{seed}")
    for _ in range(choose.choice((0, 0, 1, 2))):
        down_s = choose.choice((0.05, 0.3, 1.0))
        simulation.after(
            choose.uniform(0.05, 1.0), lambda down_s=down_s: simulation.lose(node_of(simulation, choose), down_s)
        )
    for _ in range(choose.choice((0, 0, 1, 2))):
        for_s = choose.choice((0.2, 0.8, 3.0))
        simulation.after(
            choose.uniform(0.05, 1.0), lambda for_s=for_s: simulation.cut_off(node_of(simulation, choose), for_s)
        )
    for _ in range(choose.choice((0, 1, 2))):
        for_s = choose.choice((0.2, 0.8, 2.0, 5.0))

        def freeze(for_s: float = for_s) -> None:
            roles = [role for role in Role if any(who.role is role for who in simulation.cores)]
            role = choose.choice(roles or [None])
            for who in [who for who in sorted(simulation.cores) if who.role is role][:1]:
                simulation.freeze(who, for_s)

        simulation.after(choose.uniform(0.05, 1.0), freeze)


def make_simulation(seed: int, *, is_troubled: bool = True) -> AuditedSimulation:
    """Return the job with its faults, its stragglers, and people who resize, pause and turn knobs meanwhile; in two of
    three processes also stand still, and nodes are lost or cut off.
    """
    choose = random.Random(f"world/{seed}")
    spec = make_spec(seed)
    is_late = spec.strategy.needs.lands_late
    far_s = random.Random(f"line/{seed}").choice((0.0, 0.03, 0.1)) if is_late else 0.0
    # No node is lost where lines are long: with a shard and the one that knows it is covered, before its backup has heard
    # so, nobody would serve.
    has_trouble = is_troubled and seed % 3 > 0 and not far_s
    simulation = AuditedSimulation(
        spec,
        workload=_workload(spec.task.model_dump_json()),
        faults=(
            *random_faults(seed, choose.randint(1, 8), 15),
            *random_freezes(seed, seed % 3 if is_troubled else 0, 15),
            *_late_faults(spec),
        ),
        network=Network(latencies_s={f"shard/{number}": far_s for number in range(99)} if far_s else {}),
        pace=Pace(step_s=0.02, jitter=0.3, hiccup_share=0.05, slow={0: choose.choice((1.0, 3.0))}),
        max_time_s=600,
    )
    if has_trouble:
        trouble(simulation, seed)
    if choose.random() < 0.3:
        simulation.after(choose.uniform(0.05, 0.3), simulation.add_worker)
    if choose.random() < 0.3 and spec.scale.workers > 1:
        simulation.after(choose.uniform(0.05, 0.3), lambda: simulation.remove_worker(spec.scale.workers - 1))
    if choose.random() < 0.2:
        simulation.after(0.1, lambda: simulation.turn(pause=True))
        simulation.after(choose.uniform(0.2, 1.0), lambda: simulation.turn(pause=False, lr=0.02))
    return simulation


def run_seed(seed: int, *, is_troubled: bool = True) -> AuditedSimulation:
    """Run one schedule to its end and check the books; raise with the seed if anything is wrong."""
    simulation = make_simulation(seed, is_troubled=is_troubled)
    try:
        result = simulation.run()
        simulation.check()
        assert simulation.coordinator.finished
        assert "eval/loss" in result.metrics
        assert simulation.saved_by, "it has ended without a model"
    except BaseException as error:
        error.add_note(f"seed {seed}: see it again with `make faults SEED={seed}`") if hasattr(
            error, "add_note"
        ) else None
        raise
    return simulation


def main() -> int:
    """Run one schedule or many."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="show one schedule: the job, its faults, how it ended")
    parser.add_argument("--count", type=int, default=1000, help="how many schedules to run (default 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.seed is not None:
        spec = make_spec(arguments.seed)
        print(spec.model_dump_json(indent=1))
        simulation = run_seed(arguments.seed)
        for fault in simulation.happened:
            print(f"happened: {fault.action} at {fault.where}, number {fault.nth}, {fault.delay_s} s")
        for event in simulation.ledger.events:
            print(f"{event.sequence:4d} step {event.step:3d} {event.kind:9s} {event.data}")
        return 0
    happened: Counter[str] = Counter()
    started = time.perf_counter()
    for seed in range(arguments.start, arguments.start + arguments.count):
        try:
            happened.update(f"{fault.action} {fault.where}" for fault in run_seed(seed).happened)
        except Exception as error:
            print(f"\nseed {seed} failed: {type(error).__name__}: {error}\nsee it again with `make faults SEED={seed}`")
            return 1
        if sys.stdout.isatty():
            print(
                f"\r{seed + 1 - arguments.start} of {arguments.count} schedules, {happened.total()} faults",
                end="",
                flush=True,
            )
    print(f"\nall {arguments.count} ended with balanced books in {time.perf_counter() - started:.0f} s", end="; ")
    print(f"{happened.total()} faults of {len(happened)} kinds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
