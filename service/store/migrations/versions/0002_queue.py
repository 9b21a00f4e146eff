"""A queue before jobs start, leases per service, and numbers that never go back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add what is new; jobs that have been started count as admitted."""
    op.create_table(
        "services",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("until_s", sa.Float, nullable=False),
    )
    op.create_table(
        "totals",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("label", sa.String(20), primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )
    for column in (
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("admitted_s", sa.Float),
        sa.Column("launched_address", sa.Text),
        sa.Column("removed_s", sa.Float),
        sa.Column("source_sequence", sa.BigInteger, nullable=False, server_default="-1"),
        sa.Column("incarnation", sa.Integer, nullable=False, server_default="0"),
        sa.Column("knob_shift", sa.Integer, nullable=False, server_default="0"),
        sa.Column("totals", sa.Text, nullable=False, server_default="{}"),
    ):
        op.add_column("jobs", column)
    op.add_column("events", sa.Column("source", sa.BigInteger))
    op.drop_column("jobs", "lease_until_s")
    op.execute("UPDATE jobs SET source_sequence = last_sequence, lease_owner = NULL")
    op.execute("UPDATE jobs SET admitted_s = created_s WHERE launches > 0 OR state <> 'PENDING'")
    unadmitted = sa.text("admitted_s IS NULL")
    op.create_index(
        "jobs_in_queue",
        "jobs",
        ["priority", "created_s", "id"],
        sqlite_where=unadmitted,
        postgresql_where=unadmitted,
    )
