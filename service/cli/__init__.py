"""The command line. It imports what a command needs when the command runs, so that `--help` answers at once."""

from __future__ import annotations

from service.cli.root import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line."""
    app()
