"""Lossless payloads where they lie: what was handed out never changes, and memory is used again once nobody looks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from raysync.address import Address, worker
from raysync.compress import Identity
from raysync.compress.feedback import Feedback
from raysync.compress.in_place import Room, values_of
from raysync.compress.registry import check, decode, decode_add
from raysync.compress.wire import sealed
from raysync.engine import messages as m
from raysync.engine.server.block import ParameterBlock, load_block
from raysync.errors import PayloadError
from raysync.spec import JobSpec
from tests.jobs import job

SIZE = 300


def test_what_is_held_never_changes_and_what_is_not_is_used_again() -> None:
    room = Room()
    first = room.write(torch.full((SIZE,), 1.0))
    second = room.write(torch.full((SIZE,), 2.0))
    assert [float(decode(payload, SIZE).mean()) for payload in (first, second)] == [1.0, 2.0]
    held = memoryview(first)[20:]  # as a socket holds a part of it
    place = values_address(first)
    del first
    assert values_address(room.write(torch.full((SIZE,), 3.0))) != place, "a part of it is still looked at"
    assert bytes(held) == bytes(Identity().encode(torch.full((SIZE,), 1.0), 0)[20:])
    del held
    assert values_address(room.write(torch.full((SIZE,), 4.0))) == place


def values_address(payload: bytes) -> int:
    values = values_of(payload, SIZE)
    assert values is not None
    return values.data_ptr()


def test_what_was_held_for_long_is_given_back() -> None:
    room = Room()
    held = [room.write(torch.full((SIZE,), float(number))) for number in range(20)]
    assert len({values_address(payload) for payload in held}) == 20
    assert [float(decode(payload, SIZE)[0]) for payload in held] == [*map(float, range(20))]
    del held
    (buffers,) = [room.write(torch.zeros(SIZE)) and known for known in room._buffers.values()]
    assert len(buffers) == 3


def test_a_tensor_holds_its_payload_too() -> None:
    room = Room()
    payload, numbers = room.take(SIZE)
    numbers.fill_(1.0)
    part = numbers[5:9]
    del payload, numbers
    for _ in range(4):
        room.write(torch.zeros(SIZE))
    assert part.tolist() == [1.0] * 4


@pytest.mark.parametrize("size", [0, 1, 31, SIZE])
def test_payloads_are_those_of_identity_but_for_the_checksum(size: int) -> None:
    values = torch.randn(size)
    payload = Room().write(values)
    check(payload, size)
    assert torch.equal(decode(payload, size), values)
    assert sealed(payload) == Identity().encode(values, 0) == sealed(sealed(payload))
    out = torch.ones(size)
    decode_add(payload, out, 0.5)
    assert torch.equal(out, torch.ones(size) + 0.5 * values)


def test_what_cannot_be_right_is_refused() -> None:
    payload = Room().write(torch.randn(SIZE))
    for wrong in (payload[:-4], payload[:10], b"xx" + bytes(payload[2:])):
        with pytest.raises(PayloadError):
            check(wrong, SIZE)
    with pytest.raises(PayloadError, match="the block has 7"):
        check(payload, 7)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(PayloadError, match="NaN or an infinity"):
            Room().write(torch.tensor([1.0, bad]))
    damaged = bytearray(sealed(payload))
    damaged[-1] ^= 1
    with pytest.raises(PayloadError, match="damaged"):
        check(bytes(damaged), SIZE)


def test_pushes_on_their_way_are_saved_sealed() -> None:
    feedback = Feedback()
    payload = feedback.squeeze((0, "gradient"), 3, torch.randn(SIZE), Identity(), 0)
    (kept,) = feedback.state_dict()["pending"].values()
    assert kept == (3, sealed(payload))
    assert isinstance(kept[1], bytes)


# A block's round


def test_a_lossless_pull_is_the_block_itself_and_never_changes_after() -> None:
    block, pushes = made(pull="identity"), [pushed(round) for round in range(5)]
    reference, shown, expected = Reference(), [], []
    for round, each in enumerate(pushes):
        update = block.aggregate(each, round)
        assert update.payload_kind == "values"
        shown.append(update.payload)
        expected.append(reference.step(each))
        assert torch.equal(block.x, expected[-1])
        assert block.y is block.x, "there is no second copy"
    for payload, values in zip(shown, expected, strict=True):
        assert torch.equal(decode(payload, SIZE), values), "a later round has written over what was shown"


def test_a_round_without_contributions_shows_the_same_bytes() -> None:
    block = made(pull="identity")
    first = block.aggregate(pushed(0), 0)
    assert block.aggregate({}, 1).payload == first.payload


@pytest.mark.parametrize("order", [("identity", "onebit", "identity", "onebit"), ("onebit", "identity", "onebit")])
def test_codecs_may_take_turns(order: tuple[str, ...]) -> None:
    block, visible, reference = made(pull=order[0]), torch.zeros(SIZE), Reference()
    shown: list[tuple[bytes, bytes]] = []
    for round, pull in enumerate(order):
        block.retune(spec(pull))
        block = load_block(spec(pull), 0, block.state_dict()) if round == 2 else block  # type: ignore[assignment]
        update = block.aggregate(pushed(round), round)
        shown.append((update.payload, bytes(update.payload)))
        if update.payload_kind == "values":
            visible = decode(update.payload, SIZE)
        else:
            decode_add(update.payload, visible)
        assert torch.equal(block.x, reference.step(pushed(round))), "what is shown does not move the server"
        assert torch.equal(block.y, visible)
    assert all(payload == before for payload, before in shown)


def spec(pull: str) -> JobSpec:
    codec = {"kind": pull} | ({"chunk": 32} if pull == "onebit" else {})
    return job({"kind": "bsp"}, compression={"pull": codec}, optimizer={"kind": "sgd", "lr": 0.3, "momentum": 0.9})


def made(pull: str) -> ParameterBlock:
    return ParameterBlock(spec(pull), 0, torch.zeros(SIZE))


def pushed(round: int) -> dict[Address, m.Push]:
    generator, found = torch.Generator().manual_seed(round), {}
    for index, weight in enumerate((32.0, 17.0, 5.0)):
        said: dict[str, Any] = {"view": 1, "block": 0, "round": round, "participants": None, "lr": 0.3}
        payload = Room().write(torch.randn(SIZE, generator=generator))
        said |= {"payload": payload, "payload_kind": "gradient", "weight": weight}
        found[worker(index)] = m.Push(sender=worker(index), **said)
    return found


class Reference:
    """A round in torch's own operations, one after the other: the specification."""

    def __init__(self) -> None:
        self.x, self._momentum = torch.zeros(SIZE), torch.zeros(SIZE)

    def step(self, pushes: dict[Address, m.Push]) -> Tensor:
        total, mean = sum(push.weight for push in pushes.values()), torch.zeros(SIZE)
        for who in sorted(pushes):
            mean.add_(decode(pushes[who].payload), alpha=pushes[who].weight / total)
        self._momentum.mul_(0.9).add_(mean, alpha=1.0)
        return self.x.add_(self._momentum, alpha=-0.3).clone()
