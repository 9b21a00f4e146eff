"""Tokens, roles, and whoever guesses."""

from __future__ import annotations

import pytest

from service.errors import TooManyFailures, Unauthorized
from service.security.auth import MAX_FAILURES, WINDOW_S, Authenticator, Role, create_token
from service.store import Store
from tests.service.conftest import World


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def test_only_digests_are_kept(store: Store) -> None:
    token = create_token(store.tokens, "me", Role.VIEWER)
    row = store.tokens.all()[0]
    assert token.split("_", 2)[2] not in repr(row)
    assert len(row.digest) == 64


def test_a_token_expires_and_can_be_revoked(store: Store) -> None:
    token = create_token(store.tokens, "short", Role.VIEWER, lifetime_s=100.0)
    clock = Clock()
    clock.now_s = store.tokens.all()[0].created_s
    guard = Authenticator(store.tokens, clock)
    assert guard.authenticate(token, "a").name == "short"
    clock.now_s += 101
    with pytest.raises(Unauthorized, match="expired"):
        guard.authenticate(token, "a")
    lasting = create_token(store.tokens, "lasting", Role.ADMIN)
    assert guard.authenticate(lasting, "a").role is Role.ADMIN
    store.tokens.revoke(lasting.split("_")[1], clock.now_s)
    with pytest.raises(Unauthorized):
        guard.authenticate(lasting, "a")


@pytest.mark.parametrize(
    "text", [None, "", "x", "rs_", "rs__", "rs_ab_cd", "Bearer", "rs_" + "a" * 500, "rs_é_ü", "rs_a_\x00"]
)
def test_what_is_no_token_is_refused(text: str | None, store: Store) -> None:
    with pytest.raises(Unauthorized):
        Authenticator(store.tokens).authenticate(text, "a")


def test_whoever_guesses_waits_and_his_neighbours_do_not(store: Store) -> None:
    good, late = (create_token(store.tokens, name, Role.VIEWER) for name in ("good", "late"))
    clock = Clock()
    guard = Authenticator(store.tokens, clock)
    guard.authenticate(good, "address")
    for n in range(MAX_FAILURES):
        with pytest.raises(Unauthorized):
            guard.authenticate(f"rs_00000000_{n}", "address")
    with pytest.raises(TooManyFailures) as caught:
        guard.authenticate("rs_00000000_x", "address")
    assert 0 < caught.value.wait_s <= WINDOW_S + 1
    assert guard.authenticate(good, "address").name == "good", "whoever was right before goes on"
    assert guard.authenticate(late, "address").name == "late", "and so does one who comes for the first time"
    with pytest.raises(TooManyFailures):
        guard.authenticate("rs_00000000_y", "address")  # a right one does not end the wait of the guesser
    with pytest.raises(Unauthorized):
        guard.authenticate("rs_00000000_z", "elsewhere")
    clock.now_s += WINDOW_S + 1
    with pytest.raises(Unauthorized):
        guard.authenticate("rs_00000000_z", "address")


def test_roles_cover_those_below() -> None:
    assert [[a.covers(b) for b in Role] for a in Role] == [[True, False, False], [True, True, False], [True] * 3]


def test_guessing_over_http_ends_in_429_with_a_time(world: World) -> None:
    answers = [
        world.call("GET", "/api/v1/jobs", role=None, headers={"Authorization": f"Bearer rs_00000000_{n}"})
        for n in range(MAX_FAILURES + 1)
    ]
    assert [answer.status_code for answer in answers] == [401] * MAX_FAILURES + [429]
    assert int(answers[-1].headers["retry-after"]) > 0
