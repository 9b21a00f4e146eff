"""What alembic runs: the migrations, on the connection it was handed."""

from __future__ import annotations

from alembic import context

from service.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
