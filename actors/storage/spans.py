"""What stages did and when, kept in a job's folder by each of them when it ends."""

from __future__ import annotations

import json

from actors.storage.folder import Folder
from raysync.address import Address
from raysync.control.placing import replica_of
from raysync.pipeline.base import Kind
from raysync.pipeline.trace import Traced
from raysync.spec import JobSpec

_FOLDER = "trace"
_MAX_PIPELINES = 4096


def write_spans(folder: Folder, who: Address, spans: list[Traced]) -> None:
    """Keep what a stage did."""
    rows = [[span.kind.value, *span[2:]] for span in spans]
    folder.at(_FOLDER).write(_name(who), json.dumps(rows).encode())


def read_spans(folder: Folder, spec: JobSpec) -> list[Traced]:
    """Return what all stages that have ended did, in order."""
    found: list[Traced] = []
    for index in range(_MAX_PIPELINES):
        missing = 0
        for who in replica_of(spec, index):
            if folder.at(_FOLDER).size(_name(who)) is None:
                missing += 1
                continue
            rows = json.loads(folder.at(_FOLDER).read(_name(who)))
            found += [Traced(who, Kind(kind), *rest) for kind, *rest in rows]
        if missing and index >= spec.scale.workers:
            break
    return sorted(found, key=lambda span: span.start_s)


def _name(who: Address) -> str:
    return f"{str(who).replace('/', '-')}.json"
