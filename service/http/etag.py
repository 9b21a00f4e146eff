"""Entity tags as RFC 9110 has them: lists, the weak ones among them, and the two ways to compare."""

from __future__ import annotations

import re
from typing import NamedTuple

from service.errors import BadRequest

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_GAP = re.compile(r"[ \t,]*")


class Tags(NamedTuple):
    """What a header of entity tags names."""

    is_any: bool
    """It is `*`: whatever is there now."""
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()

    def match_strongly(self, tag: str) -> bool:
        """Return whether `If-Match` holds: a weak tag is never enough for a change."""
        return self.is_any or tag in self.strong

    def match_weakly(self, tag: str) -> bool:
        """Return whether `If-None-Match` finds the tag: weak ones count as well."""
        return self.is_any or tag in self.strong | self.weak


def parse_tags(header: str, field: str) -> Tags:
    """Return the tags of a header, or raise `BadRequest`."""
    text = header.strip(" \t")
    if text == "*":
        return Tags(True)
    found: dict[bool, set[str]] = {True: set(), False: set()}
    at = _after_gap(text, 0)
    while at < len(text):
        tag = _TAG.match(text, at)
        end = _after_gap(text, tag.end()) if tag else 0
        if tag is None or (end < len(text) and "," not in text[tag.end() : end]):
            raise BadRequest(f"header.{field}", 'send ETags as GET gave them, such as "3" or "3", "4", or *')
        found[tag[1] is not None].add(tag[2])
        at = end
    return Tags(False, frozenset(found[False]), frozenset(found[True]))


def _after_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at
