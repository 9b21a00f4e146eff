"""A study's process that tries nothing: it says what a real one would say, for tests of the service.

    python tests/talking_study.py FOLDER ADDRESS SOCKET

Its study's name says how it behaves: `slow` waits to be stopped, `twice` asks for a job that cannot be, `dying` dies.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq

from raysync.study import Kind, Seen, State, Trial, parse_study
from raysync.study.wire import Answered, EndStudy, StartJob, StudyEnded, ToStudy, TrialTold


def main() -> None:
    """Talk."""
    folder, _, endpoint = sys.argv[1:4]
    spec = parse_study(json.loads((Path(folder) / "study.json").read_text()))
    socket = zmq.Context.instance().socket(zmq.PAIR)
    socket.connect(endpoint)

    def hear() -> ToStudy:
        found: ToStudy = msgspec.msgpack.decode(socket.recv(), type=ToStudy)
        return found

    def tell(message: Any) -> None:
        socket.send(msgspec.msgpack.encode(message))

    if spec.name == "dying":
        os._exit(7)
    is_stopped = False
    job = json.loads(spec.job({}).model_dump_json())
    if spec.name == "twice":
        job["strategy"]["no_such"] = 1
    for number in range(1 if spec.name in ("slow", "twice") else spec.trials):
        id = f"{Path(folder).name}-{os.getpid()}-{number}"
        tell(StartJob(number, id, json.dumps({**job, "labels": {"study": Path(folder).name}})))
        while isinstance(answer := hear(), EndStudy):
            is_stopped = True
        point = {"strategy.delta": 0.2} if number == 2 else {}
        kind = (Kind.OWN, Kind.DENSE, Kind.SEARCHED)[number]
        trial = Trial(number=number, kind=kind, point=point, jobs=[id])
        if isinstance(answer, Answered) and answer.problem is not None:
            trial.state, trial.reason = State.FAILED, answer.problem
        elif spec.name != "slow":
            trial.state, trial.quality = State.REACHED, (0.95, 0.95, 0.92)[number]
            trial.cost = trial.total_bytes = (2e6, 1e8, 1e6)[number]
            trial.seen = [Seen(10, 0.95, 1e6, 1.0)]
        tell(TrialTold(trial))
    while spec.name == "slow" and not is_stopped:
        is_stopped = isinstance(hear(), EndStudy)
    tell(StudyEnded("STOPPED" if spec.name == "slow" else "SUCCEEDED", "as it was told"))
    socket.close()
    zmq.Context.instance().term()


if __name__ == "__main__":
    main()
