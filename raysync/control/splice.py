"""Where a journal goes another way than what was taken from it.

A journal may lose its end when the machine that wrote it does; its next writer goes on from what is left and uses
numbers again. A number is therefore no proof that an event is known, nor a larger one that none was missed: events are
compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping


def splice(known: Mapping[int, Hashable], told: Iterable[tuple[int, Hashable]], last: int) -> int:
    """Return the first number from which on a journal's events are new.

    Args:
        known: The events taken from the journal before, by number; old ones may be missing.
        told: What the journal has now, in order, from at or before the first number in question.
        last: The number of the last event taken from it.

    """
    for number, event in told:
        if number > last or (number in known and known[number] != event):
            return number
    return last + 1
