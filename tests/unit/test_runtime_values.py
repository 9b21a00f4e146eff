"""Small pure parts of the runtime: versions, progress, environments, optimizers of attached loops."""

from __future__ import annotations

import logging
import logging.handlers
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from actors import errors
from actors.api.fit import _without_token_notice
from actors.job.packages import prepare
from actors.shell.coordinator import CoordinatorSeat
from actors.shell.core_loop import CoreLoop
from actors.shell.versions import differences, this_code
from actors.storage.folder import Folder
from raysync.address import COORDINATOR
from raysync.engine import messages as m
from raysync.engine.training.attached import AttachedReplica, server_rule
from raysync.errors import CheckpointError, NotRunning, SpecError, TaskError
from raysync.optim import SGD, AdamW
from raysync.spec import parse_spec
from service.cli.short import size, summary
from tests.jobs import job
from tests.unit.test_host import QuietLink


def test_code_that_differs_is_named() -> None:
    ours = this_code()
    assert differences(ours, ours) == ()
    theirs = msgspec.structs.replace(ours, torch="1.0", sources="abc")
    assert differences(ours, theirs) == (
        f"sources is abc there and {ours.sources} here",
        f"torch is 1.0 there and {ours.torch} here",
    )
    assert "fit(..., ship_code=True)" in str(errors.VersionSkew("n", ("torch is 1 there and 2 here",)))


@pytest.mark.parametrize(
    "error",
    [
        errors.PeerLost("worker/1", 2.0),
        errors.UnknownPeer("shard/0"),
        errors.JobFailed("job", "why"),
        NotRunning("job", "PENDING", "why"),
        errors.NoLink("shard/0: why"),
        CheckpointError("path", "problem"),
        errors.VersionSkew("node", ("a",)),
        errors.NoCluster("1.2.3.4:5", "refused"),
    ],
)
def test_errors_survive_the_trip_between_processes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_progress_in_words() -> None:
    metrics = {
        "train/loss": 0.1234,
        "eval/accuracy": 0.961,
        "sync/lssr": 0.87,
        "comm/bytes_up": 1.2e6,
        "comm/bytes_down": 0,
    }
    assert summary({**metrics, "train/samples_per_s": 12345}) == (
        "loss 0.123, accuracy 96.1 %, LSSR 0.87, sent 1.2 MB, 12,345 samples/s"
    )
    assert [size(n) for n in (12, 1500, 2.5e9, 3e12)] == ["12 B", "1.5 kB", "2.5 GB", "3.0 TB"]


def test_rays_token_notice_is_kept_back_while_a_ray_of_our_own_starts() -> None:
    from ray._private.authentication import authentication_token_setup as ray_setup

    # Handler and level of this logger itself: a test that ran Ray in this process has quietened the loggers above it.
    heard = logging.handlers.BufferingHandler(capacity=10)
    before = ray_setup.logger.level
    ray_setup.logger.addHandler(heard)
    ray_setup.logger.setLevel(logging.WARNING)
    try:
        with _without_token_notice():
            ray_setup._warn_token_auth_enabled()
            ray_setup._warn_token_auth_disabled()
        assert heard.buffer == []
        ray_setup._warn_token_auth_enabled()
        assert len(heard.buffer) == 1, "only then"
    finally:
        ray_setup.logger.removeHandler(heard)
        ray_setup.logger.setLevel(before)


def test_environments_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "raysync.py").write_text("")
    for env, words in (
        ({"working_dir": str(tmp_path / "absent")}, "no such folder"),
        ({"working_dir": str(tmp_path)}, "would hide raysync's own package"),
        ({"workingdir": "."}, "known here: working_dir"),
    ):
        with pytest.raises(SpecError, match=words):
            prepare(env, ship_code=False)


def test_the_server_takes_over_an_optimizers_settings() -> None:
    parameter = [torch.nn.Parameter(torch.zeros(2))]
    assert server_rule(torch.optim.SGD(parameter, lr=0.2, momentum=0.5)) == SGD(lr=0.2, momentum=0.5)
    assert server_rule(torch.optim.AdamW(parameter, lr=0.1, betas=(0.8, 0.9))) == AdamW(lr=0.1, beta1=0.8, beta2=0.9)
    with pytest.raises(TaskError, match="has no Adagrad"):
        server_rule(torch.optim.Adagrad(parameter, lr=0.1))


def test_gradients_that_rounds_carry_are_gathered() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
    spec = parse_spec({"task": {"kind": "custom", "entrypoint": "a:b"}, "strategy": {"kind": "bsp"}})
    replica = AttachedReplica(spec, model, optimizer)
    model(torch.ones(1, 3)).sum().backward()
    replica.compute(None, 0)
    assert torch.equal(replica.grad, torch.ones(4))


def test_attached_parameters_are_views_and_the_loops_optimizer_steps() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
    task = {"kind": "custom", "entrypoint": "a:b"}
    spec = parse_spec({"task": task, "strategy": {"kind": "local_sgd", "sync_every": 2}})
    before = torch.cat([model.weight.detach().reshape(-1), model.bias.detach()])
    replica = AttachedReplica(spec, model, optimizer)
    assert torch.equal(replica.flat, before)
    model(torch.ones(1, 3)).sum().backward()
    replica.compute(None, 0)
    assert replica.grad_sq() == pytest.approx(4.0), "though gradients that no round carries stay where they are"
    assert torch.equal(replica.grad, torch.zeros(4))
    replica.step(123.0)  # the rate is the loop's
    assert torch.equal(replica.flat, before - 0.5)
    assert torch.equal(model.bias.detach(), before[3:] - 0.5)
    other = torch.optim.SGD([model.weight], lr=0.5)
    with pytest.raises(TaskError, match="exactly the model's trainable parameters"):
        AttachedReplica(spec, model, other)


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_coordinator_holds_events_only_for_who_fetches_them(tmp_path: Path, is_followed: bool) -> None:
    """Attached loops have no controller: a million steps of theirs would hold 1.3 GB."""
    followed = {"is_followed": True} if is_followed else {}
    seat = CoordinatorSeat(job(), Folder(str(tmp_path)), None, **followed)
    loop = CoreLoop(QuietLink(), {COORDINATOR: seat})
    for number in range(100):
        seat.core.books.checkpointed(0, number, 0)
        loop.say(COORDINATOR, m.Stop(reason="enough"))
    assert len(seat.events) == (100 if is_followed else 0)


@pytest.mark.parametrize("in_force", [True, False])
def test_a_job_stopped_while_it_paused_does_not_wait_when_it_is_resumed(tmp_path: Path, in_force: bool) -> None:
    spec = job()
    paused = CoordinatorSeat(spec, Folder(str(tmp_path)), None).core
    paused.board.turn({"pause": True}, None)
    if in_force:
        paused.board.apply()
    saved = paused.state_dict()
    again = CoordinatorSeat(spec, Folder(str(tmp_path)), saved, is_new_job=True).core.board
    assert again.ahead().values["pause"] is False
    assert not again.paused
    recovered = CoordinatorSeat(spec, Folder(str(tmp_path)), saved, is_new_job=False).core.board
    assert recovered.ahead().values["pause"] is True
