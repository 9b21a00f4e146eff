"""Tokens: only their digests are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from sqlalchemy import func, insert, select, update

from service.errors import NotFound
from service.store.database import Database
from service.store.tables import tokens


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token as the books have it."""

    id: str
    name: str
    role: str
    digest: str
    created_s: float
    expires_s: float | None = None
    revoked_s: float | None = None
    used_s: float | None = None


class Tokens:
    """Reads and writes tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, row: TokenRow) -> None:
        """Enter a token."""
        with self._database.write(durable=True) as connection:
            connection.execute(insert(tokens).values(msgspec.structs.asdict(row)))

    def find(self, id: str) -> TokenRow | None:
        """Return a token, or None."""
        with self._database.read() as connection:
            row = connection.execute(select(tokens).where(tokens.c.id == id)).one_or_none()
        return None if row is None else _unpacked(row._mapping)

    def all(self) -> list[TokenRow]:
        """Return every token, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.created_s))
            return [_unpacked(row._mapping) for row in rows]

    def count_valid(self, now_s: float) -> int:
        """Return how many tokens can be used."""
        usable = (tokens.c.revoked_s.is_(None), tokens.c.expires_s.is_(None) | (tokens.c.expires_s > now_s))
        with self._database.read() as connection:
            return connection.execute(select(func.count()).select_from(tokens).where(*usable)).scalar_one()

    def valid(self, ids: Collection[str], now_s: float) -> set[str]:
        """Return which of these tokens can still be used."""
        usable = (tokens.c.revoked_s.is_(None), tokens.c.expires_s.is_(None) | (tokens.c.expires_s > now_s))
        with self._database.read() as connection:
            return {row[0] for row in connection.execute(select(tokens.c.id).where(tokens.c.id.in_(ids), *usable))}

    def used(self, times_s: Mapping[str, float]) -> None:
        """Note when tokens were last used."""
        with self._database.write() as connection:
            for id, used_s in times_s.items():
                connection.execute(update(tokens).where(tokens.c.id == id).values(used_s=used_s))

    def revoke(self, id: str, now_s: float) -> None:
        """Make a token useless from now on."""
        with self._database.write(durable=True) as connection:
            done = connection.execute(
                update(tokens).where(tokens.c.id == id, tokens.c.revoked_s.is_(None)).values(revoked_s=now_s)
            )
            if done.rowcount == 0:
                raise NotFound("valid token", id)


def _unpacked(mapping: Any) -> TokenRow:
    return TokenRow(**{str(name): value for name, value in mapping.items()})
