"""How the flat vector is cut, and which shard owns which piece."""

from __future__ import annotations

from raysync.shard.blocks import Block, Role, assign, cut

__all__ = ["Block", "Role", "assign", "cut"]
