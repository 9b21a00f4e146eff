"""Deaths that have one cause are one incident: a lost node takes all its workers along, and that is bad luck once.

A job gives up when incident follows incident without a step between them, however many workers each of them cost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from raysync.address import Address

WINDOW_S = 60.0
"""Deaths later than this after the first have a cause of their own: a node's loss is noticed well within it."""


class Incidents(msgspec.Struct, frozen=True):
    """How many incidents there have been since the last step, and the one that may still be going on."""

    in_a_row: int = 0
    began_s: float = 0.0
    """When the last one began."""
    present: frozenset[Address] = frozenset()
    """The workers that had been started when it began and have not died in it: a replacement that dies is the next
    incident.
    """
    last: str = ""
    """What was heard of the last death."""


def with_deaths(
    incidents: Incidents, dead: Mapping[Address, str], started: Collection[Address], now_s: float
) -> Incidents:
    """Return the incidents once these workers, of all that have been started, were found dead for these reasons."""
    if not dead:
        return incidents
    last = [*dead.values()][-1]
    is_late = not 0.0 <= now_s - incidents.began_s <= WINDOW_S
    if incidents.in_a_row == 0 or is_late or not dead.keys() <= incidents.present:
        return Incidents(incidents.in_a_row + 1, now_s, frozenset(started) - dead.keys(), last)
    return msgspec.structs.replace(incidents, present=incidents.present - dead.keys(), last=last)
