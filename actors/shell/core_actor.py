"""The shell every core runs in: a thread that builds the core, waits to be introduced, and runs it to its end.

Ray calls arrive on other threads: `deliver` in order on one of its own, everything else on the rest.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
from typing import Any

import msgspec
import ray

from actors.errors import VersionSkew
from actors.link.base import Contact, Endpoint, Link
from actors.link.direct import DirectLink, sweep
from actors.link.ray import RayLink
from actors.shell.core_loop import CoreLoop
from actors.shell.process import is_stopped
from actors.shell.seat import Seat
from actors.shell.versions import Code, differences, this_code
from actors.storage.folder import Folder
from actors.storage.log_shipper import LogShipper
from actors.storage.retry import LONG_S, patiently
from actors.storage.saved import saved_state
from raysync.address import Address
from raysync.control.budgets import Cause
from raysync.control.placing import slot_of
from raysync.errors import Diverged
from raysync.events import StuckStep
from raysync.failure import explain
from raysync.spec import JobSpec

logger = logging.getLogger(__name__)

CONCURRENCY = {"link": 1, "wait": 4, "control": 8, "pulse": 1}
_INTRODUCTION_S = 300.0
_LAST_WORDS_S = 2.0
HOSTED_S = 60.0


class Assignment(msgspec.Struct, frozen=True):
    """What an actor is told when it is made."""

    job: str
    addresses: tuple[Address, ...]
    """The cores it hosts; the first gives it its name."""
    spec: str
    """The job as JSON."""
    key: bytes
    driver: Code
    folder: str
    resume: str | None = None
    """The checkpoint its cores continue from."""
    cpus: float = 0.0
    gpus: float = 0.0
    elapsed_s: float = 0.0
    """How long the job had run before the checkpoint."""
    is_spare: bool = False
    """It stands by for as long as its controller is there."""
    is_followed: bool = False
    """A controller follows it: the coordinator begins when it is told to, and holds its events until they are
    fetched."""


class Hello(msgspec.Struct, frozen=True):
    """What an actor says of itself."""

    addresses: tuple[Address, ...]
    node: str
    node_id: str
    pid: int
    link: str | None
    """The link it uses; None until it has been introduced."""
    endpoint: Endpoint | None
    endpoint_problem: str | None


class Outcome(msgspec.Struct, frozen=True):
    """How a core ended: `gone` (left or finished), `stopped`, or `failed` and why."""

    kind: str
    failure: str | None = None
    cause: Cause | None = None
    """What the failure came of, where that is known."""


class CoreActor:
    """Base of the worker, shard and coordinator actors; they only say which seats they fill."""

    def __init__(self, assignment: Assignment, controller: Any) -> None:
        self.assignment, self.name, self._controller = assignment, assignment.addresses[0], controller
        self.spec = JobSpec.model_validate_json(assignment.spec)
        self.folder = Folder(assignment.folder)
        self._lines = LogShipper(
            str(self.name), lambda lines: controller and ray.get(controller.lines.remote(lines), timeout=10)
        )
        self._lines.install()
        self._skew = differences(assignment.driver, this_code())
        self._ray_link = RayLink(self.name)
        self._direct: DirectLink | None = None
        self._direct_problem: str | None = "the job's transport is ray"
        if self.spec.transport.kind != "ray":
            self._open_direct()
        self._link: Link = self._ray_link
        self._host: CoreLoop | None = None
        self._facts: dict[str, Any] = {}
        self._built, self._introduced = threading.Event(), threading.Event()
        self._hosted, self._ended = threading.Event(), threading.Event()
        self._first = threading.Lock()
        self._outcome = Outcome("stopped")
        self._halted = False
        threading.Thread(target=self._live, name="core", daemon=True).start()

    def seats(self) -> dict[Address, Seat]:
        """Return the cores of this actor; called on the thread that runs them."""
        raise NotImplementedError

    # Called by the controller

    @ray.method(concurrency_group="control")
    def hello(self) -> Hello:
        """Return where this actor is; raise if its code is not the driver's."""
        node = ray.util.get_node_ip_address()
        if self._skew:
            raise VersionSkew(node, self._skew)
        return Hello(
            addresses=self.assignment.addresses,
            node=node,
            node_id=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            link=self._link.kind if self._introduced.is_set() else None,
            endpoint=self._direct.endpoint if self._direct is not None else None,
            endpoint_problem=self._direct_problem,
        )

    @ray.method(concurrency_group="control")
    def probe(self, book: dict[Address, Contact], timeout_s: float) -> list[Address]:
        """Return which of these peers the direct link cannot reach; before `introduce`."""
        if self._direct is None:
            return sorted(book)
        self._direct.connect(book)
        return self._direct.probe(sorted(book), timeout_s)

    @ray.method(concurrency_group="control")
    def introduce(self, kind: str, book: dict[Address, Contact], gone: tuple[Address, ...] = ()) -> None:
        """Tell the actor which link to use and where its peers are; the first time, it begins."""
        with self._first:
            is_first = not self._introduced.is_set()
            if is_first:
                self._link = self._direct if kind == "direct" and self._direct is not None else self._ray_link
                self._link.connect(book)
                self._introduced.set()
        if is_first:
            return
        if self._hosted.wait(HOSTED_S) and self._host is not None:
            self._host.introduce(book, gone)

    @ray.method(concurrency_group="wait")
    def wait(self) -> Outcome:
        """Return how the core ended, once it has."""
        self._ended.wait()
        return self._outcome

    @ray.method(concurrency_group="control")
    def facts(self) -> dict[str, Any]:
        """Return what really runs here, and the memory it takes."""
        sent = self._direct.network_bytes if self._direct is not None else None
        return {**self._facts, "peak_rss_bytes": _peak_rss_bytes(), "network_bytes_sent": sent}

    @ray.method(concurrency_group="pulse")
    def ping(self) -> str:
        """Answer."""
        return str(self.name)

    @ray.method(concurrency_group="pulse")
    def pulse(self) -> StuckStep | None:
        """Answer, with what is to be told of a step that takes far too long."""
        return self._host.stuck() if self._host is not None else None

    @ray.method(concurrency_group="pulse")
    def sees_stopped(self, pid: int) -> bool:
        """Return whether another process of this machine is stopped."""
        return is_stopped(pid)

    @ray.method(concurrency_group="control")
    def halt(self) -> None:
        """End the core wherever it is, free its sockets, and hand over the last lines."""
        self._halted = True
        self._introduced.set()
        if self._host is not None:
            self._host.stop()
        if not self._ended.wait(10.0) and self._direct is not None:
            sweep(self._direct.endpoint)  # in the middle of a long step: it is killed next
        self._lines.flush()

    @ray.method(concurrency_group="control")
    def sweep(self, endpoint: Endpoint) -> None:
        """Clear up after a neighbour on this node that was killed."""
        sweep(endpoint)

    @ray.method(concurrency_group="link")
    def deliver(self, head: bytes, body: Any) -> None:
        """Take in a frame from a peer's Ray link."""
        self._ray_link.deliver(head, body)

    # The core's thread

    def _live(self) -> None:
        try:
            self._run()
        except Exception as error:
            module = getattr(self.spec.task, "entrypoint", "").partition(":")[0]
            cause = Cause.DIVERGENCE if isinstance(error, Diverged) else None
            self._outcome = Outcome("failed", explain(error, module, os.getcwd()), cause)
            logger.exception("failed")
        finally:
            self._close()
            self._lines.flush()
            self._hosted.set()
            self._ended.set()

    def _run(self) -> None:
        seats = self.seats()
        self._facts["built_rss_bytes"] = _peak_rss_bytes()
        while not self._introduced.wait(_INTRODUCTION_S):
            if self.assignment.is_spare:
                ray.get(self._controller.wait.remote(0.0), timeout=_INTRODUCTION_S)  # raises if it is gone for good
                continue
            raise TimeoutError(f"{self.name} was not introduced to its peers within {_INTRODUCTION_S:.0f} s")
        self._host = CoreLoop(self._link, seats)
        self._hosted.set()
        if not self._halted:
            self._host.run()
        for seat in seats.values():
            seat.ended()
        self._outcome = Outcome("gone" if seats[self.name].core.done else "stopped")
        self._host.flush(_LAST_WORDS_S)

    def _open_direct(self) -> None:
        try:
            self._direct = DirectLink(self.name, self.assignment.key, ray.util.get_node_ip_address())
            self._direct_problem = None
        except Exception as error:  # no sockets here: the controller decides what that means
            self._direct_problem = f"{type(error).__name__}: {error}"

    def _close(self) -> None:
        self._ray_link.close()
        if self._direct is not None:
            self._direct.close(_LAST_WORDS_S)

    def _saved(self, address: Address) -> dict[str, Any] | None:
        """Return the state a core continues from; None if it starts anew."""
        if self.assignment.resume is None or slot_of(self.spec, address) != address:
            return None
        folder = Folder(self.assignment.resume)
        what, shards = f"reading {address}'s part of {folder.uri}", self.spec.scale.shards
        found: dict[str, Any] | None = patiently(lambda: saved_state(folder, address, shards), what, LONG_S)
        return found


def _peak_rss_bytes() -> int:
    """Return the most memory this process has held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
