"""A study as a process of its own, for a service that lists its trials among its jobs.

    python -m tune_configs.process FOLDER ADDRESS SOCKET PARENT

It joins the cluster, runs the study in the folder or goes on with it, asks the service to start and end jobs, and tells
it of every change. It ends with the service; started again, it goes on from the folder.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import ray
import zmq

from actors.api.fit import join
from raysync.errors import RaysyncError
from raysync.spec import JobSpec
from raysync.study import Trial
from raysync.study.wire import (
    Answered,
    EndStudy,
    FromStudy,
    LookAtJob,
    StartJob,
    StopJob,
    StudyEnded,
    ToStudy,
    TrialTold,
)
from tune_configs.store import StudyStore
from tune_configs.study import Study

_ANSWER_S = 120.0
_TURN_MS = 10

logger = logging.getLogger(__name__)


class Line:
    """The socket to the service, worked by one thread; any thread may tell or ask."""

    def __init__(self, endpoint: str, parent: int) -> None:
        self._parent = parent
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.connect(endpoint)
        self._outbox: queue.Queue[FromStudy] = queue.Queue()
        self._waiting: dict[int, queue.Queue[Answered]] = {}
        self._numbers = itertools.count()
        self._study: Study | None = None
        self._is_ending = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="line", daemon=True)
        self._thread.start()

    def steers(self, study: Study) -> None:
        """Let the service end this study; it may have asked for that before."""
        self._study = study
        if self._is_ending:
            study.stop()

    def tell(self, message: FromStudy) -> None:
        """Say something that needs no answer."""
        self._outbox.put(message)

    def ask(self, make: Any, unanswered: str | None = "the service did not answer in time") -> str | None:
        """Ask something, made with a number, and return the problem it is answered with."""
        number = next(self._numbers)
        answers = self._waiting[number] = queue.Queue()
        self.tell(make(number))
        try:
            return answers.get(timeout=_ANSWER_S).problem
        except queue.Empty:
            return unanswered
        finally:
            del self._waiting[number]

    def close(self) -> None:
        """Send what is left and let go."""
        self._is_closing.set()
        self._thread.join(5.0)
        self._socket.close()

    def _work(self) -> None:
        while not (self._is_closing.is_set() and self._outbox.empty()):
            if os.getppid() != self._parent:
                os._exit(3)  # the service is gone: whoever takes its place starts this again
            try:
                while True:
                    self._socket.send(msgspec.msgpack.encode(self._outbox.get_nowait()))
            except queue.Empty:
                pass
            while self._socket.poll(_TURN_MS):
                self._take(msgspec.msgpack.decode(self._socket.recv(), type=ToStudy))

    def _take(self, message: ToStudy) -> None:
        match message:
            case Answered():
                if message.number in self._waiting:
                    self._waiting[message.number].put(message)
            case EndStudy():
                self._is_ending = True
                if self._study is not None:
                    self._study.stop()


class AskedLauncher:
    """Has the service start and end jobs: they are entered, queued, followed and listed like any other."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def launch(self, id: str, spec: JobSpec) -> None:
        """Have a job entered; raise `ValueError` with the service's reason if it refuses."""
        problem = self._line.ask(lambda number: StartJob(number, id, spec.model_dump_json()))
        if problem is not None:
            raise ValueError(problem)

    def stop(self, id: str, reason: str) -> None:
        """Have a job ended."""
        self._line.ask(lambda number: StopJob(number, id, reason))

    def gone(self, id: str) -> str | None:
        """Ask why a job is not on the cluster."""
        return self._line.ask(lambda number: LookAtJob(number, id), unanswered=None)

    def finished(self, id: str) -> None:
        """The service clears up after its jobs itself."""


def main() -> int:
    """Run the study."""
    folder, address, endpoint, parent = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    line = Line(endpoint, int(parent))
    try:
        line.tell(_run(StudyStore(Path(folder)), address, line))
    except (RaysyncError, ray.exceptions.RayError, OSError):
        logger.exception("it could not run; the service tries again")
        return 4
    finally:
        line.close()
    return 0


def _run(store: StudyStore, address: str, line: Line) -> StudyEnded:
    join(address)
    try:
        store.ensure()
        with store.held():

            def on_change(trial: Trial) -> None:
                line.tell(TrialTold(msgspec.structs.replace(trial)))

            study = Study(store, launcher=AskedLauncher(line), on_change=on_change)
            for trial in study.book.trials.values():
                on_change(trial)  # the service may have missed how it ended
            line.steers(study)
            result = study.run()
            return StudyEnded(result.state, result.reason)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
