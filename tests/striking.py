"""A task that strikes a process at a moment of the protocol: it looks on from inside a worker, and does as a file says.

Whoever writes the file (`arm`) names the moment, the process and the signal; the first worker that comes to the moment
takes the file away and sends the signal. Production code knows nothing of it: the loop of the worker's own process is
watched from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.drowsy import Drowsy, DrowsyText

if TYPE_CHECKING:
    from torch import Tensor, nn

MOMENTS = ("computing", "pushing", "closing", "pulling", "checkpoint")
"""While a worker computes; when a push has left and is not acknowledged; when the last one has, and shards close the
round; when the first answer is there and has not been taken in; when a part of a checkpoint is about to be written.
"""


def arm(plan: Path, moment: str, pid: int, kind: signal.Signals, *, is_group: bool = False) -> None:
    """Have a process struck at the next such moment."""
    draft = plan.with_suffix(".draft")
    draft.write_text(json.dumps({"moment": moment, "pid": pid, "kind": int(kind), "is_group": is_group}))
    draft.rename(plan)


def _at(plan: Path, moment: str) -> None:
    """Strike, if it is this moment that is waited for."""
    with contextlib.suppress(FileNotFoundError):
        told = json.loads(plan.read_text())
        if told["moment"] == moment:
            plan.rename(plan.with_suffix(".struck"))  # raises for all but the first
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if told["is_group"] else os.kill)(told["pid"], told["kind"])


def _watch(plan: Path) -> None:
    """Watch the loop of this process."""
    from actors.shell.core_loop import CoreLoop
    from raysync.engine import messages as m

    if getattr(CoreLoop, "is_watched", False):
        return
    send, hand, keep_part = CoreLoop.send, CoreLoop._hand, CoreLoop.keep_part
    last_block = [0]

    def sending(self: Any, core: Any, sent: Any) -> None:
        send(self, core, sent)
        if isinstance(sent.message, m.Push | m.PushPart):
            last_block[0] = max(last_block[0], sent.message.block)
            _at(plan, "pushing")
            if sent.message.block == last_block[0]:
                _at(plan, "closing")

    def handing(self: Any, to: Any, message: Any) -> None:
        if isinstance(message, m.Update | m.PartMean):
            _at(plan, "pulling")
        hand(self, to, message)

    def keeping(self: Any, core: Any, part: Any) -> str | None:
        _at(plan, "checkpoint")
        return keep_part(self, core, part)

    CoreLoop.send, CoreLoop._hand, CoreLoop.keep_part = sending, handing, keeping  # type: ignore[method-assign]
    CoreLoop.is_watched = True  # type: ignore[attr-defined]


class Striking(Drowsy):
    """Digits."""

    plan: str

    def model(self) -> nn.Module:
        """Return the model; from now on the process is watched."""
        _watch(Path(self.plan))
        return super().model()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss."""
        _at(Path(self.plan), "computing")
        return super().loss(model, batch)


class StrikingText(DrowsyText):
    """A small language model, for pipelines."""

    plan: str

    def model(self) -> nn.Module:
        """Return the model; from now on the process is watched."""
        _watch(Path(self.plan))
        return super().model()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss."""
        _at(Path(self.plan), "computing")
        return super().loss(model, batch)
