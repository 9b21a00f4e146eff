"""Studies and their trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "studies",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("package", sa.String(64)),
        sa.Column("pip", sa.Text, nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("ended_s", sa.Float),
        sa.Column("stop", sa.Text),
        sa.Column("sequence", sa.BigInteger, nullable=False),
    )
    op.create_index("studies_by_age", "studies", ["created_s", "id"])
    op.create_table(
        "trials",
        sa.Column("study", sa.String(100), sa.ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("trials_by_sequence", "trials", ["study", "sequence"])
