"""Which view deals out the data of a step: views overlap, since a new one is heard of before its first step."""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.address import Address
from raysync.control.view import NO_VIEW, View


class DataViews:
    """The views a worker has heard of that deal out data of this step or of later ones, oldest first."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._views: list[View] = []

    @property
    def newest(self) -> View:
        """The last view heard of."""
        return self._views[-1] if self._views else NO_VIEW

    def begin(self, view: View) -> None:
        """Start with a view: what was before does not count."""
        self._views = [view]

    def add(self, view: View) -> None:
        """Hear of a view."""
        self._views.append(view)

    def of(self, step: int) -> View:
        """Return the newest view that deals out a step's data; older ones are of no more use."""
        mine = [
            number
            for number, view in enumerate(self._views)
            if view.start_step <= step and self._address in view.members
        ]
        self._views = self._views[mine[-1] :]
        return self._views[0]

    def dealing(self, step: int) -> View:
        """Return the newest view that deals out the data of a step yet to come."""
        mine = [view for view in self._views if view.start_step <= step and self._address in view.members]
        return mine[-1]

    def state_dict(self) -> list[Any]:
        """Return the views as plain data."""
        plain: list[Any] = msgspec.to_builtins(self._views)
        return plain

    def load_state_dict(self, state: list[Any], servers: tuple[Address, ...]) -> None:
        """Continue from a saved state, with the shards there are now: whoever served then is gone."""
        saved = msgspec.convert(state, list[View], strict=False)
        self._views = [msgspec.structs.replace(view, servers=servers, backups=()) for view in saved]
