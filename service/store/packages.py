"""Packages of user code, by the digest of their bytes: any service process on this database has them."""

from __future__ import annotations

import json
from typing import NamedTuple

from sqlalchemy import delete, select, update

from service.errors import NotFound
from service.store.database import Database
from service.store.tables import jobs, packages


class PackageRow(NamedTuple):
    """A package without its bytes."""

    id: str
    owner: str
    created_s: float
    size_bytes: int
    modules: tuple[str, ...]
    """The modules it holds, by dotted name."""


class Packages:
    """Reads and writes packages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, row: PackageRow, content: bytes) -> PackageRow:
        """Enter a package; if it is there already, return that one, as young as this one."""
        values = {**row._asdict(), "modules": json.dumps(row.modules), "content": content}
        with self._database.write(durable=True) as connection:
            insert = self._database.insert(packages).values(values)
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_={"created_s": row.created_s}))
        return self.get(row.id)

    def get(self, id: str) -> PackageRow:
        """Return a package, or raise `NotFound`."""
        columns = [packages.c[name] for name in PackageRow._fields]
        with self._database.read() as connection:
            row = connection.execute(select(*columns).where(packages.c.id == id)).one_or_none()
        if row is None:
            raise NotFound("package", id)
        return PackageRow(row.id, row.owner, row.created_s, row.size_bytes, tuple(json.loads(row.modules)))

    def content(self, id: str) -> bytes:
        """Return a package's bytes."""
        with self._database.read() as connection:
            row = connection.execute(select(packages.c.content).where(packages.c.id == id)).one_or_none()
        if row is None:
            raise NotFound("package", id)
        return bytes(row.content)

    def use(self, id: str, now_s: float) -> PackageRow:
        """Return a package a job is about to use, as young as now, or raise `NotFound`."""
        with self._database.write() as connection:
            connection.execute(update(packages).where(packages.c.id == id).values(created_s=now_s))
        return self.get(id)

    def ids(self) -> set[str]:
        """Return the ids of all packages."""
        with self._database.read() as connection:
            return {row[0] for row in connection.execute(select(packages.c.id))}

    def clear(self, before_s: float) -> list[str]:
        """Strike what was sent or used before then and no job on the books uses; return its ids."""
        used = select(jobs.c.package).where(jobs.c.package.is_not(None))
        with self._database.write() as connection:
            gone = delete(packages).where(packages.c.created_s < before_s, packages.c.id.not_in(used))
            return [row[0] for row in connection.execute(gone.returning(packages.c.id))]
