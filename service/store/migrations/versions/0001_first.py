"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("strategy", sa.String(20), nullable=False),
        sa.Column("package", sa.String(64)),
        sa.Column("pip", sa.Text, nullable=False),
        sa.Column("resume_from", sa.Text),
        sa.Column("on_cluster_loss", sa.String(10), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("started_s", sa.Float),
        sa.Column("ended_s", sa.Float),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("workers", sa.Integer, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("knobs", sa.Text, nullable=False),
        sa.Column("knob_version", sa.Integer, nullable=False),
        sa.Column("knob_version_in_force", sa.Integer, nullable=False),
        sa.Column("runs", sa.Text, nullable=False),
        sa.Column("launches", sa.Integer, nullable=False),
        sa.Column("launched_on", sa.Text),
        sa.Column("stop", sa.Text),
        sa.Column("stop_force_after_s", sa.Float),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("num_events", sa.BigInteger, nullable=False),
        sa.Column("thinned_below", sa.BigInteger, nullable=False),
        sa.Column("thinned_to_every", sa.Integer, nullable=False),
        sa.Column("lease_owner", sa.String(100)),
        sa.Column("lease_until_s", sa.Float),
        sa.Index("jobs_by_age", "created_s", "id"),
        sa.Index("jobs_by_state", "state", "created_s", "id"),
    )
    op.create_table(
        "events",
        sa.Column("job", sa.String(100), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("time_s", sa.Float, nullable=False),
        sa.Column("worker", sa.Integer),
        sa.Column("knob_version", sa.Integer, nullable=False),
        sa.Column("is_lasting", sa.Boolean, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Index("events_by_kind", "job", "kind", "sequence"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("expires_s", sa.Float),
        sa.Column("revoked_s", sa.Float),
        sa.Column("used_s", sa.Float),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("owner", sa.String(100), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("job", sa.String(100), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
    )
    op.create_table(
        "packages",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("modules", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
