"""Who may do what: bearer tokens with roles. A token is shown once; the books keep its digest."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from service.errors import Forbidden, TooManyFailures, Unauthorized
from service.store import TokenRow, Tokens

MAX_FAILURES = 10
WINDOW_S = 60.0
_MAX_ADDRESSES = 10_000
_USED_EVERY_S = 60.0


class Role(StrEnum):
    """What a token is good for; each role can do what those before it can."""

    VIEWER = "viewer"
    """look"""
    OPERATOR = "operator"
    """submit, steer, stop"""
    ADMIN = "admin"
    """remove"""

    def covers(self, needed: Role) -> bool:
        """Return whether this role may do what `needed` may."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


class Caller(NamedTuple):
    """Who sent a request."""

    token: str
    """The token's id."""
    name: str
    role: Role


def create_token(tokens: Tokens, name: str, role: Role, lifetime_s: float | None = None) -> str:
    """Make a token, enter its digest, and return it; it cannot be read later."""
    id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    now_s = time.time()
    expires_s = None if lifetime_s is None else now_s + lifetime_s
    tokens.add(
        TokenRow(id=id, name=name, role=role.value, digest=_digest(secret), created_s=now_s, expires_s=expires_s)
    )
    return f"rs_{id}_{secret}"


class Authenticator:
    """Turns a token into a caller, and slows down an address that guesses."""

    def __init__(self, tokens: Tokens, now_s: Callable[[], float] = time.time) -> None:
        self._tokens, self._now_s = tokens, now_s
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        """When wrong tokens came, by address."""
        self._uses: dict[str, float] = {}
        """When tokens were last used, since the books took note of it."""

    def authenticate(self, token: str | None, address: str) -> Caller:
        """Return whose token this is; raise if it is unknown, and tell an address that has guessed often to wait.

        A right token is right from everywhere: many share an address, and one who guesses must not lock out the rest.
        """
        if not token:
            raise Unauthorized("a token is needed")
        row = self._find(token)
        if row is None:
            self._check_failures(address)
            self._failures.setdefault(address, deque(maxlen=MAX_FAILURES)).append(self._now_s())
            self._failures.move_to_end(address)
            while len(self._failures) > _MAX_ADDRESSES:
                self._failures.popitem(last=False)
            raise Unauthorized("this token is unknown, expired or revoked")
        if row.used_s is None or self._now_s() - row.used_s > _USED_EVERY_S:
            self._uses[row.id] = self._now_s()  # no request waits for a write
        return Caller(row.id, row.name, Role(row.role))

    def take_uses(self) -> dict[str, float]:
        """Return which tokens were used, and when, since this was last called."""
        uses, self._uses = self._uses, {}
        return uses

    def _find(self, token: str) -> TokenRow | None:
        prefix, _, rest = token.partition("_")
        id, _, secret = rest.partition("_")
        row = self._tokens.find(id) if prefix == "rs" and id and secret else None
        if row is None or not hmac.compare_digest(row.digest, _digest(secret)):
            return None
        expired = row.expires_s is not None and row.expires_s <= self._now_s()
        return None if expired or row.revoked_s is not None else row

    def _check_failures(self, address: str) -> None:
        times = self._failures.get(address)
        if times is None or len(times) < MAX_FAILURES:
            return
        wait_s = WINDOW_S - (self._now_s() - times[0])
        if wait_s > 0:
            raise TooManyFailures(int(wait_s) + 1)


def check_role(caller: Caller, needed: Role) -> None:
    """Raise unless the caller's role reaches."""
    if not caller.role.covers(needed):
        raise Forbidden(f"this needs the role {needed.value}; token {caller.name!r} has {caller.role.value}")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
