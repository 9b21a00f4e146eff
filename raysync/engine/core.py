"""The contract between cores and hosts: a core is called, returns effects, and is otherwise alone in the world.

One host contract serves the simulator and Ray. Its seam is `secure`: whatever a core says leaves only once what it
knows is as safe as the host promises, so that a core that comes back still knows what it has said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from raysync.address import Address
from raysync.engine import messages as m
from raysync.engine.effects import Effects, KeepModel, KeepPart, Note, Send, Stream
from raysync.events import Event
from raysync.spec import JobSpec


class Core(Protocol):
    """A core as its host sees it."""

    address: Address

    @property
    def spec(self) -> JobSpec:
        """The job with the knobs the core has heard of."""

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        """Take in a message."""

    def retry(self, now_s: float = 0.0) -> Effects:
        """Say again whatever was not answered."""

    def is_ready(self, now_s: float = 0.0) -> bool:
        """Return whether it has work of its own to do now."""

    def work(self, now_s: float = 0.0) -> Effects:
        """Do the next piece of it."""

    def settle(self) -> Effects:
        """Do what no other core waits for; what it had to say has left."""

    @property
    def done(self) -> bool:
        """Whether it has nothing left to do."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything it has said or promised, as plain data and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


class Host:
    """Runs cores: lets one act, secures what it knows, then carries out what it asked for."""

    def act(self, core: Core, action: Callable[[], Effects]) -> None:
        """Let a core act."""
        effects = action()
        self.secure(core, effects)
        self.carry_out(core, effects)

    def carry_out(self, core: Core, effects: Effects) -> None:
        """Do what a core asked for, in order."""
        for effect in effects:
            match effect:
                case Send():
                    self.send(core, effect)
                case Stream():
                    for send in effect.sends:
                        self.send(core, send)
                case KeepPart():
                    self.keep_part(core, effect)
                case KeepModel():
                    self.keep_model(core)
                    self.give(core, m.ModelKept())
                case Note():
                    self.note(core, effect.event)

    def give(self, core: Core, message: m.Message) -> None:
        """Hand a core a message."""
        self.act(core, lambda: core.handle(message, self.clock_s(core)))

    # What every host brings

    def clock_s(self, core: Core) -> float:
        """Return the time a core is told."""
        raise NotImplementedError

    def secure(self, core: Core, effects: Effects) -> None:
        """Make what a core now knows safe, before anything it says leaves."""
        raise NotImplementedError

    def send(self, core: Core, send: Send) -> None:
        """Send a message of a core's."""
        raise NotImplementedError

    def keep_part(self, core: Core, part: KeepPart) -> None:
        """Write a part of a checkpoint while the core goes on, and give it `PartKept` then."""
        raise NotImplementedError

    def keep_model(self, core: Core) -> None:
        """Keep the final model of a worker."""
        raise NotImplementedError

    def note(self, core: Core, event: Event) -> None:
        """Put an event into the job's history."""
        raise NotImplementedError
