"""Golden trajectories: a digest of the parameters after 60 simulated steps for every strategy, a few codecs, 1 and 2 shards.

python -m tests.golden            compare with tests/golden.json and name what differs
python -m tests.golden --write    rewrite it; only on purpose, with the reason in the commit

A change that alters shapes and names leaves every digest as it is. Bits depend on the processor's instructions and on
torch, so the file says what it was made with.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch

from raysync.sim import Pace, Simulation
from raysync.tasks.workload import Workload
from tests import models
from tests.jobs import EVERY, final_vector, job, workload

PATH = Path(__file__).with_name("golden.json")
CODECS: dict[str, dict[str, Any]] = {
    "dense": {},
    "onebit": {"push": {"kind": "onebit", "chunk": 32}, "pull": {"kind": "onebit", "chunk": 32}},
    "mixed": {"push": {"kind": "topk", "ratio": 0.2}, "pull": {"kind": "int8", "chunk": 32}, "dense_rounds": 2},
}
TASKS = ("quadratic", "odd")
"""The second has BatchNorm, frozen and unused parameters, and buffers of infinities."""


def cases() -> list[str]:
    """Return the names of all trajectories."""
    crossed = itertools.product(EVERY, CODECS, (1, 2), TASKS)
    return ["/".join(map(str, case)) for case in crossed if case[3] == "quadratic" or case[2] == 2]


def digest(case: str) -> str:
    """Return the digest of one trajectory: what the server holds and what every worker ends with."""
    name, codec, shards, task = case.split("/")
    changes: dict[str, Any] = {
        "compression": CODECS[codec],
        "scale": {"workers": 3, "shards": int(shards)},
        "budget": {"steps": 60},
        "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9 if codec == "dense" else 0.0},
    }
    if task == "odd" and EVERY[name]["kind"] in ("fedavg", "local_sgd", "diloco"):
        changes |= {"inner_state": "average", "optimizer": {"kind": "adam", "lr": 0.01}}
    spec = job(EVERY[name], **changes)
    data = Workload(models.Odd()) if task == "odd" else workload(spec)
    simulation = Simulation(spec, workload=data, pace=Pace(jitter=0.3))
    simulation.run()
    found = hashlib.sha256()
    for vector in (final_vector(simulation), *(core.replica.flat for core in simulation.workers.values())):
        found.update(vector.numpy().tobytes())
    return found.hexdigest()[:16]


def made_with() -> dict[str, str]:
    """Return what the bits depend on beside the code."""
    return {"torch": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability()}


def main() -> int:
    """Compare, or write."""
    torch.set_num_threads(1)
    found = {case: digest(case) for case in cases()}
    if "--write" in sys.argv[1:]:
        PATH.write_text(json.dumps({"made_with": made_with(), "digests": found}, indent=1) + "\n")
        print(f"wrote {len(found)} digests")
        return 0
    saved = json.loads(PATH.read_text())
    if saved["made_with"] != made_with():
        print(f"cannot be compared: made with {saved['made_with']}, this is {made_with()}")
        return 2
    differing = [case for case in found if saved["digests"].get(case) != found[case]]
    print("\n".join(differing) or f"all {len(found)} digests are as they were")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
