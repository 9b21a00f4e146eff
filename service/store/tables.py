"""The tables. Times are seconds since 1970, JSON is text: the same on SQLite and PostgreSQL."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(100), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("owner", String(100), nullable=False),
    Column("state", String(12), nullable=False),
    Column("reason", Text, nullable=False),
    Column("headline", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("strategy", String(20), nullable=False),
    Column("package", String(64)),
    Column("pip", Text, nullable=False),
    Column("resume_from", Text),
    Column("on_cluster_loss", String(10), nullable=False),
    Column("path", Text, nullable=False),
    Column("created_s", Float, nullable=False),
    Column("started_s", Float),
    Column("ended_s", Float),
    Column("step", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("workers", Integer, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("knobs", Text, nullable=False),
    Column("knob_version", Integer, nullable=False),
    Column("knob_version_in_force", Integer, nullable=False),
    Column("runs", Text, nullable=False),
    Column("launches", Integer, nullable=False),
    Column("launched_on", Text),
    Column("stop", Text),
    Column("stop_force_after_s", Float),
    Column("last_sequence", BigInteger, nullable=False),
    Column("num_events", BigInteger, nullable=False),
    Column("thinned_below", BigInteger, nullable=False),
    Column("thinned_to_every", Integer, nullable=False),
    Column("lease_owner", String(100)),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("admitted_s", Float),
    Column("launched_address", Text),
    Column("removed_s", Float),
    Column("source_sequence", BigInteger, nullable=False, server_default="-1"),
    Column("incarnation", Integer, nullable=False, server_default="0"),
    Column("knob_shift", Integer, nullable=False, server_default="0"),
    Column("totals", Text, nullable=False, server_default="{}"),
    Column("labels", Text, nullable=False, server_default="{}"),
    Column("rolled", BigInteger, nullable=False, server_default="0"),
    Index("jobs_by_age", "created_s", "id"),
    Index("jobs_by_state", "state", "created_s", "id"),
    Index("jobs_by_owner", "owner", "created_s", "id"),
    Index(
        "jobs_in_queue",
        "priority",
        "created_s",
        "id",
        sqlite_where=text("admitted_s IS NULL"),
        postgresql_where=text("admitted_s IS NULL"),
    ),
)

services = Table(
    "services",
    metadata,
    Column("id", String(100), primary_key=True),
    Column("until_s", Float, nullable=False),
)
"""Service processes on this database, and until when the jobs each looks after are its own."""

totals = Table(
    "totals",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("label", String(20), primary_key=True),
    Column("value", Float, nullable=False),
)
"""What jobs that have ended came to, all together: it stays when they are removed."""

events = Table(
    "events",
    metadata,
    Column("job", String(100), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("time_s", Float, nullable=False),
    Column("worker", Integer),
    Column("knob_version", Integer, nullable=False),
    Column("is_lasting", Boolean, nullable=False),
    Column("data", Text, nullable=False),
    Column("source", BigInteger),
    Index("events_by_kind", "job", "kind", "sequence"),
    sqlite_with_rowid=False,
)

labels = Table(
    "labels",
    metadata,
    Column("job", String(100), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("key", String(128), primary_key=True),
    Column("value", String(128), nullable=False),
    Index("labels_by_key", "key", "value", "job"),
)
"""The labels of jobs again, to find them by."""

blocks = Table(
    "blocks",
    metadata,
    Column("job", String(100), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("by_worker", Boolean, primary_key=True),
    Column("level", Integer, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""Metrics reduced for charts, see `service.store.series`."""

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("role", String(10), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("created_s", Float, nullable=False),
    Column("expires_s", Float),
    Column("revoked_s", Float),
    Column("used_s", Float),
)

submission_keys = Table(
    "submission_keys",
    metadata,
    Column("token", String(16), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("job", String(100), nullable=False),
    Column("created_s", Float, nullable=False),
    Column("removed_s", Float),
    Index("submission_keys_by_job", "job"),
)

packages = Table(
    "packages",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("owner", String(100), nullable=False),
    Column("created_s", Float, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("modules", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
)

studies = Table(
    "studies",
    metadata,
    Column("id", String(100), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("owner", String(100), nullable=False),
    Column("state", String(12), nullable=False),
    Column("reason", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("package", String(64)),
    Column("pip", Text, nullable=False),
    Column("created_s", Float, nullable=False),
    Column("ended_s", Float),
    Column("stop", Text),
    Column("sequence", BigInteger, nullable=False),
    Index("studies_by_age", "created_s", "id"),
)

trials = Table(
    "trials",
    metadata,
    Column("study", String(100), ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Index("trials_by_sequence", "study", "sequence"),
)
"""A trial as it is now; its number goes up with each change of any trial of the study."""
