"""Where a journal goes another way than what was taken from it: the table."""

from __future__ import annotations

import pytest

from raysync.control.splice import splice


@pytest.mark.parametrize(
    ("known", "told", "last", "first"),
    [
        ("", "", -1, 0),
        ("", "ab", -1, 0),
        ("abc", "abc", 2, 3),
        ("abc", "abcd", 2, 3),
        ("abc", "ab", 2, 3),  # shorter: nothing new yet
        ("abc", "", 2, 3),
        ("abc", "abx", 2, 2),
        ("abc", "axyz", 2, 1),
        ("abc", "xyz", 2, 0),
        ("a.c", "abcd", 2, 3),  # what is not known any more is not compared
        ("a.c", "axyz", 2, 2),
        ("abcde", "abXY", 1, 2),  # taken from another way before: only what was taken last counts
    ],
)
def test_splice_table(known: str, told: str, last: int, first: int) -> None:
    before = {number: letter for number, letter in enumerate(known) if letter != "."}
    assert splice(before, enumerate(told), last) == first
