"""A round on the direct link without Ray: workers with a shard each in their processes, beside gloo's all-reduce.

python -m tests.bench wire [onebit] [2 10]    a codec for both ways; numbers of workers, then megabytes

Both are measured in one run, gloo before and after. A busy machine makes wall time a poor witness, so the processor
time of all processes together, per round, stands beside it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from raysync.address import COORDINATOR, Address, shard, worker
from raysync.spec import JobSpec, parse_spec
from tests.bench.record import record

WORKERS, MEGABYTES = (2, 4), (1, 10, 40)
_DEAR = 4
"""In every fourth round processor time is looked at, too."""


def main() -> int:
    """Measure and print."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    codec = next((word for word in words if word == "onebit"), "identity")
    numbers = [int(word) for word in words if word.isdigit()]
    for workers in numbers[:1] or WORKERS:
        for megabytes in numbers[1:] or MEGABYTES:
            _compare(workers, megabytes, codec)
    return 0


def _compare(workers: int, megabytes: int, codec: str) -> None:
    before = gloo_round(workers, megabytes)
    ours = our_round(workers, megabytes, codec)
    gloo = [statistics.mean(both) for both in zip(before, gloo_round(workers, megabytes), strict=True)]
    facts = {
        "ours_ms": 1e3 * ours[0],
        "gloo_ms": 1e3 * gloo[0],
        "ours_cpu_ms": 1e3 * ours[1],
        "gloo_cpu_ms": 1e3 * gloo[1],
    }
    ratios = {"ratio": ours[0] / gloo[0], "cpu_ratio": ours[1] / gloo[1]}
    record("wire", workers=workers, megabytes=megabytes, codec=codec, **facts, **ratios)


def our_round(workers: int, megabytes: int, codec: str = "identity") -> tuple[float, float]:
    """Return the median time of a round, from the report to the new parameters, and the processor time it takes."""
    names = (COORDINATOR, *map(worker, range(workers)))
    return _together([(_node, (name, _spec(workers, megabytes, codec))) for name in names], workers)


def gloo_round(workers: int, megabytes: int) -> tuple[float, float]:
    """Return the same of an all-reduce."""
    with tempfile.TemporaryDirectory() as folder:
        return _together([(_gloo, (rank, workers, megabytes, folder)) for rank in range(workers)], workers)


def _together(programs: list[Any], workers: int) -> tuple[float, float]:
    """Run programs, each in a process; tell all what each told first; return the last workers' times."""
    import multiprocessing as mp

    context = mp.get_context("spawn")
    pipes, processes = [], []
    for target, arguments in programs:
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=target, args=(*arguments, theirs)))
        pipes.append(ours)
    for process in processes:
        process.start()
    told = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(told)
    times = [pipe.recv() for pipe in pipes[-workers:]]
    for pipe in pipes:
        pipe.send("enough")
    for process in processes:
        process.join()
    return statistics.median(wall for wall, _ in times), sum(cpu for _, cpu in times)


def _spec(workers: int, megabytes: int, codec: str) -> JobSpec:
    task = {"kind": "custom", "entrypoint": "tests.bench.rounds:Still", "args": {"elements": megabytes * 262_144}}
    return parse_spec(
        {
            "task": task,
            "strategy": {"kind": "bsp"},
            "optimizer": {"kind": "sgd", "lr": 1e-6},
            "compression": {"push": {"kind": codec}, "pull": {"kind": codec}},
            "data": {"batch_size": 1},
            "scale": {"workers": workers, "shards": workers, "shards_in": "workers", "replicas": 0},
            "budget": {"steps": 10**6},
            "eval": {"every": 10**9},
        }
    )


def _repeats(megabytes: int) -> int:
    return max(24, min(200, 600 // megabytes))


class _Clock:
    """A probe that times rounds, and what some of them cost; the first quarter does not count."""

    def __init__(self, rounds: int) -> None:
        self.found: tuple[float, float] | None = None
        self.done = threading.Event()
        self._rounds, self._walls, self._cpus = rounds, list[float](), list[float]()
        self._begun_s = self._begun_cpu_s = 0.0

    def __call__(self, point: str) -> None:
        is_dear = len(self._walls) % _DEAR == _DEAR - 1
        if point == "worker.reported":
            self._begun_cpu_s = time.process_time() if is_dear else 0.0
            self._begun_s = time.perf_counter()
        elif point == "worker.synced" and not self.done.is_set():
            self._walls.append(time.perf_counter() - self._begun_s)
            if is_dear:
                self._cpus.append(time.process_time() - self._begun_cpu_s - _clock_s())
            if len(self._walls) == self._rounds:
                self.found = statistics.median(self._walls[self._rounds // 4 :]), statistics.mean(self._cpus[1:])
                self.done.set()


def _clock_s() -> float:
    """Return what looking at the processor's clock costs: on some machines more than a millisecond."""
    return min(-time.process_time() + time.process_time() for _ in range(3))


def _node(name: Address, spec: JobSpec, pipe: Any) -> None:
    """Be the coordinator, or a worker and its shard."""
    import torch

    from actors.link.base import Contact
    from actors.link.direct import DirectLink
    from actors.shell.coordinator import CoordinatorSeat
    from actors.shell.core_loop import CoreLoop
    from actors.shell.seat import Seat
    from actors.shell.shard import shard_seat
    from actors.storage.folder import Folder
    from raysync.engine.worker import Worker
    from raysync.tasks.workload import Workload

    torch.set_num_threads(1)
    link = DirectLink(name, b"k" * 32, "127.0.0.1")
    seats: dict[Address, Seat] = {}
    clock = _Clock(_repeats(4 * spec.task.args["elements"] >> 20))  # type: ignore[union-attr]
    if name == COORDINATOR:
        seats[name] = CoordinatorSeat(spec, Folder("."), None)
    else:
        seats[name] = Seat(Worker(name, spec, Workload(spec.task.build()), probe=clock))
        seats[shard(name.index)] = shard_seat(shard(name.index), spec, Folder("."), None)
    pipe.send((tuple(seats), link.endpoint))
    book = {who: endpoint for several, endpoint in pipe.recv() for who in several if who not in seats}
    link.connect({who: Contact(None, endpoint) for who, endpoint in book.items()})
    loop = CoreLoop(link, seats)
    threading.Thread(target=lambda: clock.done.wait() and clock.found and pipe.send(clock.found)).start()
    threading.Thread(target=lambda: (pipe.recv(), clock.done.set(), loop.stop())).start()
    profile = os.environ.get("WIRE_PROFILE") and name.index == 0 and name != COORDINATOR
    if profile:
        import cProfile

        cProfile.runctx("loop.run()", {}, {"loop": loop}, os.environ["WIRE_PROFILE"])
    else:
        loop.run()
    link.close()


def _gloo(rank: int, workers: int, megabytes: int, folder: str, pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    pipe.send(rank)
    pipe.recv()
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=rank, world_size=workers)
    vector, rounds = torch.ones(megabytes * 262_144), _repeats(megabytes)
    times, begun_cpu_s = [], 0.0
    for number in range(rounds):
        begun_cpu_s = time.process_time() if number == rounds // 4 else begun_cpu_s
        begun_s = time.perf_counter()
        dist.all_reduce(vector)
        times.append(time.perf_counter() - begun_s)
    pipe.send((statistics.median(times), (time.process_time() - begun_cpu_s) / (rounds - rounds // 4)))
    pipe.recv()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
