"""Metrics reduced for charts, labels to find jobs by, and jobs by owner."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add what is new, and enter the labels of jobs that are there; their metrics are reduced when first asked for."""
    op.add_column("jobs", sa.Column("labels", sa.Text, nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("rolled", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("jobs_by_owner", "jobs", ["owner", "created_s", "id"])
    op.create_table(
        "labels",
        sa.Column("job", sa.String(100), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("value", sa.String(128), nullable=False),
    )
    op.create_index("labels_by_key", "labels", ["key", "value", "job"])
    op.create_table(
        "blocks",
        sa.Column("job", sa.String(100), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("by_worker", sa.Boolean, primary_key=True),
        sa.Column("level", sa.Integer, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    _enter_labels()


def _enter_labels() -> None:
    connection = op.get_bind()
    jobs = sa.table("jobs", sa.column("id", sa.String), sa.column("spec", sa.Text), sa.column("labels", sa.Text))
    labels = sa.table("labels", sa.column("job"), sa.column("key"), sa.column("value"))
    ids = connection.execute(sa.select(jobs.c.id).where(jobs.c.spec.like('%"labels":{"%'))).scalars().all()
    for id in ids:
        spec = connection.execute(sa.select(jobs.c.spec).where(jobs.c.id == id)).scalar_one()
        found = {str(key).replace("\x00", ""): str(value).replace("\x00", "") for key, value in _labels(spec).items()}
        connection.execute(sa.update(jobs).where(jobs.c.id == id).values(labels=json.dumps(found)))
        for key, value in found.items():
            connection.execute(sa.insert(labels).values(job=id, key=key, value=value))


def _labels(spec: str) -> dict[str, str]:
    """Return the labels a job was submitted with; the specification may be of any version."""
    found = json.loads(spec).get("labels")
    return found if isinstance(found, dict) else {}
