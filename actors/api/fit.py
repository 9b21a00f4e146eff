"""`fit`: run a job to its end on the Ray that is there, or on one started for it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from actors.api.job import Job, check_order, submit
from actors.api.result import Result
from actors.errors import NoCluster
from actors.job.actor_group import NAMESPACE
from actors.job.cluster import resources
from raysync.advice import advice
from raysync.control.placing import Shortage, demand_of, place
from raysync.errors import FieldProblem, SpecError
from raysync.events import Event
from raysync.ports import check_ray_address
from raysync.spec import JobSpec

STORAGE = Path("~/raysync_results")
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}

_KNOCK_S = 5.0

logger = logging.getLogger(__name__)


def fit(
    spec: JobSpec,
    *,
    address: str | None = None,
    storage_path: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    ship_code: bool = False,
    resume_from: str | None = None,
    on_record: Callable[[Event], None] | None = None,
    on_start: Callable[[Job], None] | None = None,
) -> Result:
    """Run a job and return what it came to; a job that failed has `result.error` set, and raises nothing.

    Args:
        spec: The job.
        address: A cluster to join if this process is in none; RAY_ADDRESS by default, else one is started.
        storage_path: Where its folder is made: a local path or any URI pyarrow knows; `~/raysync_results` by default.
        runtime_env: Ray's, for the workers: `working_dir`, `py_modules`, `pip`, `env_vars`.
        ship_code: Send this process's raysync to the nodes instead of using what is installed there.
        resume_from: A checkpoint to continue.
        on_record: Called with every event, in order.
        on_start: Called with the job once it is submitted; may keep the handle to steer it.

    Ctrl-C stops the job in good order and leaves a checkpoint; a second one ends it at once.

    """
    storage_path = storage_path or str(STORAGE.expanduser())
    check_order(spec, storage_path, runtime_env, resume_from)
    for sentence in advice(spec):
        logger.warning("note: %s", sentence)
    with connected(spec, address), _interruptible() as stop_if_interrupted:
        job = submit(
            spec,
            storage_path=storage_path,
            runtime_env=runtime_env,
            ship_code=ship_code,
            resume_from=resume_from,
        )
        try:
            stop_if_interrupted(job)
            if on_start is not None:
                on_start(job)
            for record in job.follow():
                if on_record is not None:
                    on_record(record)
            return job.result()
        finally:
            _finish(job)


def join(address: str) -> None:
    """Join a cluster, or say what stands in the way."""
    try:
        check_ray_address(address)
    except ValueError as error:
        raise NoCluster(address, str(error), remedy="") from None
    _knock(address)
    try:
        ray.init(address=address, namespace=NAMESPACE, **_QUIET)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise NoCluster(address, str(error).strip().splitlines()[0]) from error


def _knock(address: str) -> None:
    """Raise at once if no process listens there: Ray itself would try for minutes, and not be interrupted."""
    host, colon, port = address.rpartition(":")
    is_bare_ipv6 = ":" in host and not host.startswith("[")
    if not colon or not port.isdecimal() or is_bare_ipv6:
        return  # 'auto', or a name Ray knows
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()
    except (OSError, UnicodeError) as error:
        raise NoCluster(address, f"no process answers there ({getattr(error, 'strerror', None) or error})") from error


@contextlib.contextmanager
def connected(spec: JobSpec, address: str | None = None) -> Iterator[None]:
    """Use the Ray this process is connected to; else join the one `address` or RAY_ADDRESS names; else start a local
    one for as long as it is needed.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        with _interrupt_held_back():
            if address:
                join(address)
            else:
                cpus = _local_cpus(spec)
                with _without_token_notice():
                    ray.init(address="local", namespace=NAMESPACE, num_cpus=cpus, include_dashboard=False, **_QUIET)
        if not address:
            _check_fits(spec)
        yield
    finally:
        ray.shutdown()


def _local_cpus(spec: JobSpec) -> int:
    """Return the CPUs a Ray of our own offers: enough for the job, though its workers may have to share real ones."""
    scale = spec.scale
    needed = math.ceil((scale.max_workers or scale.workers) * scale.cpus_per_worker)
    real = os.cpu_count() or 1
    if needed > real:
        logger.warning("%d workers of %g CPUs share this machine's %d CPUs", scale.workers, scale.cpus_per_worker, real)
    return max(needed, real)


def _check_fits(spec: JobSpec) -> None:
    """Refuse a job that a Ray of our own can never hold: no node is ever added to it."""
    _, total = resources()
    placed = place(spec.scale.workers, demand_of(spec.scale), total, spec.scale.placement, total=total)
    if isinstance(placed, Shortage):
        raise SpecError((FieldProblem("scale", None, placed.reason),))


@contextlib.contextmanager
def _without_token_notice() -> Iterator[None]:
    """Keep Ray from saying at every start that its cluster is protected by a token, as it should be."""
    noisy = logging.getLogger("ray._private.authentication.authentication_token_setup")
    before = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        yield
    finally:
        noisy.setLevel(before)


@contextlib.contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """Raise a Ctrl-C once the block has ended, a second one at once.

    Ray starts processes meanwhile: raised in the midst of that, Python may swallow the interrupt and print where.
    """
    presses: list[int] = []

    def interrupted(signum: int, frame: object) -> None:
        presses.append(signum)
        if len(presses) > 1:
            raise KeyboardInterrupt
        logger.warning("interrupted: ending as soon as Ray has started; Ctrl-C again ends it at once")

    with _on_interrupt(interrupted):
        yield
    if presses:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[Job], None]]:
    """Turn the first Ctrl-C into a stop in good order, the second into one by force; one that comes before there is a
    job waits for it.
    """
    presses, jobs = list[int](), list[Job]()

    def stop() -> None:
        force_after_s = 60.0 if len(presses) == 1 else 0.0
        word = "stopping with a checkpoint; Ctrl-C again ends it at once" if len(presses) == 1 else "ending it at once"
        logger.warning("interrupted: %s", word)
        threading.Thread(target=jobs[0].stop, args=("interrupted", True, force_after_s), daemon=True).start()

    def interrupted(signum: int, frame: object) -> None:
        presses.append(signum)
        if jobs:
            stop()

    def stop_if_interrupted(job: Job) -> None:
        jobs.append(job)
        if presses:
            stop()

    with _on_interrupt(interrupted):
        yield stop_if_interrupted


@contextlib.contextmanager
def _on_interrupt(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Call `handler` on Ctrl-C meanwhile; only the main thread hears of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _finish(job: Job) -> None:
    """Leave nothing behind, whether the job ended or its owner gave up on it."""
    with contextlib.suppress(Exception):
        if not job.wait(0.0):
            job.stop("its owner went away", checkpoint=False, force_after_s=0.0)
        if job.wait(120.0):
            job.forget()
