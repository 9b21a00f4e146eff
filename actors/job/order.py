"""What a controller is told when it is made, and what it knows by that."""

from __future__ import annotations

import logging
import time

import msgspec

from actors.job.packages import Environments
from actors.shell.versions import Code
from actors.storage.folder import Folder, read_part
from actors.storage.retry import patiently
from raysync.address import COORDINATOR
from raysync.control.controller_memory import Memory
from raysync.engine.coordinator.knob_board import KnobBoard
from raysync.errors import RaysyncError
from raysync.knobs import Knobs, initial_knobs
from raysync.spec import JobSpec

logger = logging.getLogger(__name__)


class JobOrder(msgspec.Struct, frozen=True):
    """What a controller is told when it is made, and made again."""

    job: str
    spec: str
    """The job as JSON."""
    key: bytes
    driver: Code
    folder: str
    envs: Environments = Environments()
    resume: str | None = None
    """The checkpoint to start from."""
    knobs: Knobs | None = None
    """As they were turned since the job was submitted."""


def first_memory(order: JobOrder, spec: JobSpec) -> Memory:
    """Return what a job's first controller knows; a job that continues a checkpoint begins with its knobs."""
    initial = initial_knobs(spec)
    memory = Memory(job=order.job, started_s=time.time(), knobs=initial, asked=initial, early=initial)
    if order.resume is None:
        return memory
    memory.checkpoint = memory.resume = order.resume
    folder, board = Folder(order.resume), KnobBoard(spec)
    try:
        part = patiently(lambda: read_part(folder, COORDINATOR), f"reading the knobs of {folder.uri}")
        board.load_state_dict(part["board"])
    except (OSError, RaysyncError, KeyError, msgspec.MsgspecError) as error:
        # The launch reads the checkpoint as well, and tells what is wrong with it.
        logger.warning("the knobs of %s could not be read: %s", order.resume, error)
        return memory
    board.begin_anew()
    memory.successions = int(part["membership"].get("life", 0))  # its cores obey no coordinator before that one
    memory.knobs, memory.asked = board.knobs, board.ahead()
    return memory
