"""The commands the program prints, collected from the code that prints them, and those README shows.

A printed command stands in backticks, or after a colon at the end of a line, or among the examples of a command's help,
or is made by `Service.command_line` of `service.cli.connection`. Parts that are filled in when it is printed are `{}` here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("raysync", "actors", "service", "tune_configs")
_QUOTED = re.compile(r"`((?:raysync|tensorboard) [^`]+)`")
_AFTER_COLON = re.compile(r": +((?:raysync|tensorboard) [^`\n]+)$")
_IN_EXAMPLES = re.compile(r"(?:^|\s)((?:raysync|tensorboard) \S+(?: \S+)*)")


def templates() -> set[str]:
    """Return every command the program prints."""
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {template for path in sources for template in _in_module(ast.parse(path.read_text()))}


def pattern_of(template: str) -> re.Pattern[str]:
    """Return what matches a command as it is printed."""
    return re.compile(r"[^`\n]+?".join(re.escape(part) for part in template.split("{}")) + r"(?=$|[`\n;])", re.M)


def readme_commands() -> list[str]:
    """Return the commands of raysync's that README shows in its blocks, without their comments."""
    blocks = (ROOT / "README.md").read_text().split("```")[1::2]
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("raysync ")]
    return [re.split(r"\s#", line)[0].strip() for line in lines]


def _in_module(tree: ast.Module) -> Iterator[str]:
    """Yield the commands in a module's texts; the module's own docstring is for readers of the code."""
    own = tree.body[0].value if tree.body and isinstance(tree.body[0], ast.Expr) else None
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "command_line":
            yield f"raysync {_text(node.args[0])}"
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node is not own and id(node) not in parts:
            yield from _in_text(_text(node))


def _in_text(text: str) -> Iterator[str]:
    quoted = _QUOTED.findall(text)
    after_colon = [found for line in text.splitlines() for found in _AFTER_COLON.findall(line)]
    if re.search(r"Examples?:|Start here:", text):
        pieces = re.split(r" {2,}|, (?=raysync )", re.sub(r"Examples?: *|Start here: *", "  ", text))
        after_colon = [found.rstrip(".;") for piece in pieces for found in _IN_EXAMPLES.findall(piece)]
    yield from (found for found in [*quoted, *after_colon] if not found.startswith("raysync {"))


def _text(node: ast.AST) -> str:
    """Return a literal with `{}` for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""
