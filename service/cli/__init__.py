"""The command line: `root` has all commands, each file beside it those of one subject.

What a command needs is imported when it runs, so that `--help` answers at once. Import `app` or `main` from here. A new
command is a function in its subject's file, with `@on_service` if it talks to a service, and a line in `root`.
"""

from __future__ import annotations

from service.cli.root import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line."""
    app()
