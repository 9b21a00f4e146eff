"""schemathesis over the whole document, all checks: whatever is sent, no 5xx and no answer the document does not have."""

from __future__ import annotations

CASES_PER_OPERATION = 110
"""With 21 operations that makes more than the 2,000 cases we want; the last test counts."""

counted = {"cases": 0}
