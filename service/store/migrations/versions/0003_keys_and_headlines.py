"""Idempotency keys by token that outlive their job, and reasons in one line for lists."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from raysync.reason import shortened

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Move the keys whose token is known for certain; what they came with is not known, so any body will do."""
    op.create_table(
        "submission_keys",
        sa.Column("token", sa.String(16), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("job", sa.String(100), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("removed_s", sa.Float),
        sa.Index("submission_keys_by_job", "job"),
    )
    op.execute(
        'INSERT INTO submission_keys (token, "key", digest, job, created_s) '
        "SELECT tokens.id, old.\"key\", '', old.job, old.created_s FROM idempotency_keys AS old "
        "JOIN tokens ON tokens.name = old.owner "
        "WHERE (SELECT count(*) FROM tokens AS others WHERE others.name = old.owner) = 1"
    )
    op.drop_table("idempotency_keys")
    op.add_column("jobs", sa.Column("headline", sa.Text, nullable=False, server_default=""))
    jobs = sa.table("jobs", sa.column("id", sa.String), sa.column("reason", sa.Text), sa.column("headline", sa.Text))
    connection = op.get_bind()
    for id in connection.execute(sa.select(jobs.c.id)).scalars().all():
        reason = connection.execute(sa.select(jobs.c.reason).where(jobs.c.id == id)).scalar_one()
        connection.execute(sa.update(jobs).where(jobs.c.id == id).values(headline=shortened(reason)))
