"""Saving and loading of plain attributes: one table of names and types serves both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Fields = Mapping[str, Any]
"""Attribute names and the types msgspec restores them to."""


def dump(owner: object, fields: Fields) -> dict[str, Any]:
    """Return the named attributes as plain data that shares nothing with the owner."""
    plain: dict[str, Any] = msgspec.to_builtins({name: getattr(owner, name) for name in fields})
    return plain


def load(owner: object, fields: Fields, state: Mapping[str, Any]) -> None:
    """Set the named attributes from what `dump` returned; what an older raysync did not write stays as it is."""
    for name, kind in fields.items():
        if name in state:
            setattr(owner, name, msgspec.convert(state[name], kind, strict=False))
