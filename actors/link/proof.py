"""How two ends of a plain socket show each other that they hold the job's key without saying it: each sends a random
challenge, and answers the other's with an HMAC over both. What was overheard once opens nothing a second time.
"""

from __future__ import annotations

import hmac
import os
import socket

CHALLENGE_BYTES = PROOF_BYTES = 32


def challenge() -> bytes:
    """Return what the other end is to answer."""
    return os.urandom(CHALLENGE_BYTES)


def proof(key: bytes, role: bytes, listeners: bytes, callers: bytes) -> bytes:
    """Return the answer of an end, `caller` or `listener`, to the challenges of both."""
    return hmac.digest(key, b"raysync control " + role + listeners + callers, "sha256")


def is_proof(given: bytes, key: bytes, role: bytes, listeners: bytes, callers: bytes) -> bool:
    """Return whether that is the answer of who holds the key."""
    return hmac.compare_digest(given, proof(key, role, listeners, callers))


def received(source: socket.socket, most_bytes: int) -> bytes | None:
    """Return what is there; None for nothing yet, no bytes for the end."""
    try:
        return source.recv(most_bytes)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def sent(target: socket.socket, data: bytes) -> bool:
    """Send the few bytes of a proof, for which there is always room; return whether the other end is still there."""
    try:
        return target.send(data) == len(data)
    except OSError:
        return False
