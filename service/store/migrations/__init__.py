"""Schema migrations, run by `Database.migrate`."""
