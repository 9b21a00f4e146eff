"""The threat page names tests for what it claims: they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "service" / "deploy" / "THREATS.md"
NAMED = re.compile(r"`(?P<file>(?:tests/\w+/)?test_\w+\.py)?::(?P<test>test_\w+)`")


def test_every_test_the_page_names_is_there() -> None:
    file, named = "", 0
    for found in NAMED.finditer(PAGE.read_text()):
        file = found["file"] or file
        path = ROOT / (file if file.startswith("tests/") else f"tests/service/{file}")
        assert f"def {found['test']}(" in path.read_text(), f"{file}::{found['test']}"
        named += 1
    assert named > 40


def test_every_claim_has_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| tries")]
    assert len(rows) > 30
    for row in rows:
        assert NAMED.search(row.rpartition("|")[0].rpartition("|")[2]), row


def test_the_readme_beside_it_links_to_it() -> None:
    assert "(THREATS.md)" in (PAGE.parent / "README.md").read_text()
