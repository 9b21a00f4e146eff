"""What of the service's environment goes on to processes that run other people's code: little, and nothing secret."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_HARMLESS = re.compile(
    r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|TEMP|TMP|TERM|COLUMNS|VIRTUAL_ENV|HF_HOME|HF_HUB_OFFLINE"
    r"|(HTTP|HTTPS|NO|ALL)_PROXY|(REQUESTS|CURL)_CA_BUNDLE|(PYTHON|TORCH)\w*"
    r"|(LC|LD|PIP|UV|XDG|SSL_CERT|RAY|CUDA|NVIDIA|NCCL|GLOO|HIP|HSA|ROCR|PYTORCH|OMP|MKL|KMP|OPENBLAS|NUMBA)_\w+)",
    re.IGNORECASE,
)
_SECRET = re.compile(r"TOKEN|PASSW|SECRET|KEY|CREDENTIAL", re.IGNORECASE)
_WITH_USER = re.compile(r"://[^/\s]*@")


def scrubbed(env: Mapping[str, str], passed: Collection[str] = ()) -> dict[str, str]:
    """Return what of an environment any code may see: names known to be harmless, and those an admin has named.

    A name that sounds like a secret, or a value with credentials in an address, stays behind whatever its prefix.
    """
    return {name: value for name, value in env.items() if name in passed or _is_harmless(name, value)}


def without_own(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the service's own settings: its database, its tokens."""
    return {name: value for name, value in env.items() if not name.startswith("RAYSYNC_")}


def _is_harmless(name: str, value: str) -> bool:
    return bool(_HARMLESS.fullmatch(name)) and not _SECRET.search(name) and not _WITH_USER.search(value)
