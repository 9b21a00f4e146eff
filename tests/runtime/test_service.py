"""The whole way on real Ray: a real server, real HTTP, jobs that train, and services that are killed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysync.spec import JobSpec, parse_spec
from service.client import ApiError, Client
from service.http.schemas import JobPublic
from tests.drowsy import TASK
from tests.serving import Service, until

LONG = 1_000_000
SPEC: dict[str, Any] = {
    "name": "e2e",
    "task": TASK,
    "strategy": {"kind": "selsync", "delta": 0.3},
    "scale": {"workers": 2, "max_workers": 3},
    "budget": {"steps": LONG},
    "eval": {"every": 100},
}
ONE = {"workers": 1, "max_workers": 2, "shards_in": "workers"}


def spec(**changes: Any) -> JobSpec:
    return parse_spec({**SPEC, **changes})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"), "--allow-entrypoint=tests.drowsy:*")
    try:
        yield service
    finally:
        service.close()


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    if service.process is None or service.process.poll() is not None:
        client = service.start()
    else:
        client = Client(service.url, json.loads((service.folder / "data" / "client.json").read_text())["token"])
    with client:
        yield client


def reach(client: Client, id: str, state: str, timeout_s: float = 60) -> JobPublic:
    def there() -> bool:
        job = client.job(id)
        assert job.state.value == state or not job.is_terminal, f"{job.state.value}: {job.reason}"
        return job.state.value == state

    until(there, timeout_s)
    return client.job(id)


def training(client: Client, id: str, beyond: int = 20) -> JobPublic:
    until(lambda: client.job(id).step > beyond)
    return reach(client, id, "RUNNING")


def test_submit_stream_turn_scale_pause_resume_stop(client: Client) -> None:
    id = client.submit(spec()).id
    seen: list[Any] = []
    reader = threading.Thread(target=lambda: seen.extend(client.follow(id)), daemon=True)
    reader.start()
    job = training(client, id, beyond=200)
    assert job.runs["link"] == "direct"
    assert {name.partition("/")[0] for name in job.runs["actors"]} == {"worker", "shard", "coordinator"}

    eager = client.turn(id, delta=0.0)  # from now on every step synchronises
    until(lambda: client.knobs(id).version_in_force == eager.version)
    event = client.events(id, kind="knobs").items[-1]
    assert (event.data["before"], event.data["after"], event.knob_version) == ({"delta": 0.3}, {"delta": 0.0}, 1)
    assert event.data["by"] == "first", "the token's name"
    training(client, id, beyond=event.step + 50)
    decisions = client.events(id, after=event.sequence, kind="decision", limit=40).items
    assert all(decision.data["sync"] for decision in decisions), "it took effect at that step for everybody"
    lssr_eager = client.job(id).metrics["sync/lssr"]
    lazy = client.turn(id, delta=float("inf"))
    until(lambda: client.knobs(id).version_in_force == lazy.version)
    at = client.events(id, kind="knobs").items[-1]
    training(client, id, beyond=at.step + 300)
    decisions = client.events(id, after=at.sequence, kind="decision", limit=100).items
    assert not any(decision.data["sync"] for decision in decisions)
    assert client.job(id).metrics["sync/lssr"] > lssr_eager  # type: ignore[operator]
    with pytest.raises(ApiError, match="version"):
        client.turn(id, expected_version=0, delta=0.1)

    pids = {name: found["pid"] for name, found in client.job(id).runs["actors"].items()}
    client.scale(id, 3)
    until(lambda: client.job(id).workers == 3)
    training(client, id)
    until(lambda: len(client.job(id).runs["actors"]) == len(pids) + 1)
    assert pids.items() <= {name: found["pid"] for name, found in client.job(id).runs["actors"].items()}.items()

    client.pause(id)
    paused = reach(client, id, "PAUSED")
    assert paused.reason == "first paused it"
    at_step = paused.step
    time.sleep(1.0)
    assert client.job(id).step <= at_step + 1
    client.resume(id)
    training(client, id, beyond=at_step + 10)
    client.take_checkpoint(id)
    until(lambda: client.checkpoints(id))

    client.stop(id, "seen enough")
    job = reach(client, id, "STOPPED")
    assert job.reason == "first stopped it: seen enough"
    assert job.ended_at is not None
    reader.join(20)
    assert [event.sequence for event in seen] == list(range(job.last_sequence + 1))
    assert "controller | INFO launch" in client.log(id)

    # The same specification, though it had been scaled to 3 workers and its delta turned.
    again = client.submit(spec(budget={"steps": job.step + 200}), resume_from=id)
    done = client.wait(again.id, 60)
    assert done.state.value == "SUCCEEDED", done.reason
    from_step, trained = client.checkpoints(id)[-1].step, client.metrics(again.id, limit=2000).items
    assert {*range(from_step + 1, job.step + 200)} == {event.step for event in trained if event.worker is None}
    views = [event.data["members"] for event in client.events(again.id, kind="view").items]
    assert views[-1] == [0, 1], "it scales to its own number; it began with the checkpoint's three"
    assert (done.knobs["delta"], done.knobs["workers"]) == ("Infinity", 2)
    times = [event.time_s for event in client.events(again.id, limit=2000).items]
    assert times == sorted(times), "one clock"
    other = client.wait(client.submit(spec(seed=9), resume_from=id).id, 60)
    assert other.state.value == "FAILED"
    assert "another seed (9 here, 0 there)" in other.reason


def test_broken_user_code_ends_failed_with_its_traceback(service: Service, client: Client, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    mark = tmp_path / "imported-in"
    (code / "my_tasks.py").write_text(
        f"import os\nopen({str(mark)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "class Broken:\n    def model(self):\n        raise RuntimeError('my own mistake')\n"
        "    train_data = eval_data = loss = model\n"
    )
    (tmp_path / "job.json").write_text(
        json.dumps({**SPEC, "task": {"kind": "custom", "entrypoint": "my_tasks:Broken"}})
    )
    answer = service.cli("submit", tmp_path / "job.json", "--working-dir", code, "--json")
    assert answer.exit_code == 0, answer.stderr
    job = client.wait(json.loads(answer.stdout)["id"], 60)
    assert job.state.value == "FAILED"
    assert "RuntimeError: my own mistake" in job.reason, "in one line"
    who, told = str(job.traceback).split(": ", 1)
    assert who in ("worker/0", "worker/1"), "whichever comes to it first"
    assert told.splitlines()[:3] == [
        'File "my_tasks.py", line 5, in model',
        "    raise RuntimeError('my own mistake')",
        "RuntimeError: my own mistake",
    ]
    assert "Traceback (most recent call last)" in client.log(job.id), "the whole of it is in the log"
    assert service.process is not None
    assert str(service.process.pid) not in mark.read_text().split(), "never in the service"
    refused = service.cli("submit", tmp_path / "job.json")
    assert refused.exit_code == 2
    assert "--working-dir" in refused.stderr


@pytest.mark.matrix
def test_the_command_line_from_submit_to_stop(service: Service, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    few = {**SPEC, "scale": {**SPEC["scale"], "shards_in": "workers"}}
    path.write_text(json.dumps({**few, "budget": {"steps": 120}}))
    done = service.cli("submit", path, "--follow")
    assert done.exit_code == 0, done.stderr
    assert "SUCCEEDED" in done.stdout
    assert "RUNNING" in done.stderr
    path.write_text(json.dumps(few))
    id = service.cli("submit", path, "--key", "once").stdout.strip()
    assert service.cli("submit", path, "--key", "once").stdout.strip() == id
    training(client, id)
    answer = service.cli("set", id, "delta=0.7")
    assert "was 0.3" in answer.stdout
    assert f"undo with: raysync set {id} delta=0.3" in answer.stderr
    assert json.loads(service.cli("set", id, "--json").stdout)["values"]["delta"] == 0.7
    assert service.cli("set", id, "delta=0.9", "--expect", "0").exit_code == 2
    assert "no such knob" in service.cli("set", id, "dleta=1").stderr
    assert service.cli("scale", id, 9).exit_code == 2
    for verb, state in (("pause", "PAUSED"), ("resume", "RUNNING")):
        assert service.cli(verb, id).exit_code == 0
        reach(client, id, state)
    assert id in service.cli("list", "--state", "running").stdout
    assert "version 3" in service.cli("show", id).stdout
    assert "asked for" in service.cli("checkpoints", id, "--take").stderr
    assert service.cli("scale", id, 3).exit_code == 0
    until(lambda: client.job(id).workers == 3)
    told = service.cli("stop", id, "--reason", "done here").stderr
    assert service.cli("watch", id).exit_code == 4
    assert "done here" in service.cli("show", id).stdout
    again = service.cli(*shlex.split(told.partition("go on with: ")[2])[1:])  # as printed
    assert again.exit_code == 0, again.stderr
    went_on = again.stdout.strip()
    assert training(client, went_on, beyond=client.job(id).step).workers in (2, 3)
    until(lambda: client.job(went_on).workers == 2)
    assert service.cli("stop", went_on).exit_code == 0
    reach(client, went_on, "STOPPED")
    assert "controller | " in service.cli("logs", id).stdout
    assert "controller | " in service.cli("logs", id, "--follow").stdout
    assert service.cli("remove", id).exit_code == 0
    assert service.cli("show", id).exit_code == 2
    assert "selsync" in service.cli("components", "strategies").stdout
    token = service.cli("token", "create", "guest", "--role", "viewer", "--days", "1").stdout.strip()
    assert service.cli("list", "--token", token).exit_code == 0
    assert service.cli("submit", path, "--token", token).exit_code == 2
    service.cli("token", "revoke", token.split("_")[1])
    assert service.cli("list", "--token", token).exit_code == 2
    assert "revoked" in service.cli("token", "list").stdout
    assert service.cli("list", "--url", "http://127.0.0.1:1").exit_code == 3


def test_killed_in_mid_job_the_stream_goes_on_with_every_number_once(service: Service, client: Client) -> None:
    id = client.submit(spec(scale=ONE)).id
    assert client.turn(id, delta=0.25).version == 1, "right after it was submitted"
    training(client, id)
    turned = client.events(id, kind="knobs").items[0]
    assert (turned.step, turned.knob_version, turned.data["after"]) == (0, 1, {"delta": 0.25})
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.extend(event.sequence for event in client.follow(id)), daemon=True)
    reader.start()
    before = client.job(id)
    for _ in range(2):
        service.kill()
        time.sleep(1.5)  # the job trains on, and nobody listens
        service.start()
    until(lambda: client.job(id).step > before.step + 50)
    client.stop(id)
    job = reach(client, id, "STOPPED")
    reader.join(30)
    assert not reader.is_alive()
    assert seen == list(range(job.last_sequence + 1))
    metrics = client.metrics(id, limit=2000).items
    steps = [event.step for event in metrics if "train/loss" in event.data]
    assert steps[:500] == list(range(len(steps[:500]))), "also what it told meanwhile"


@pytest.mark.matrix
@pytest.mark.timeout(360)
def test_two_studies_at_once_survive_a_kill_of_the_service(service: Service, client: Client) -> None:
    base = {
        "task": {"kind": "digits", "hidden": [16]},
        "strategy": {"kind": "selsync", "delta": 0.1},
        "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
        "scale": {"workers": 1, "cpus_per_worker": 0.5, "shards_in": "workers"},
        "budget": {"steps": 150},
        "eval": {"every": 30},
    }
    study = {
        "base": base,
        "space": {"optimizer.lr": {"low": 0.05, "high": 0.2}},
        "floor": {"metric": "eval/accuracy", "at_least": 0.5},
        "trials": 4,
        "max_concurrent": 1,
    }
    ids = [client.submit_study({"name": name, **study}).id for name in ("one", "other")]
    until(lambda: all(client.study(id).over >= 1 for id in ids), 150)
    before = {(id, trial.number): trial for id in ids for trial in client.trials(id) if trial.state.is_over}
    service.kill()
    time.sleep(1)
    service.start()
    told = [trial["number"] for trial in client.follow_trials(ids[0])]
    until(lambda: all(client.study(id).is_terminal for id in ids), 200)
    for id in ids:
        found = client.study(id)
        assert (found.state, found.begun, found.over) == ("SUCCEEDED", 4, 4), found.reason
        assert found.front
        assert "x fewer bytes" in found.sentence
        for trial in client.trials(id):
            if (id, trial.number) in before:
                old = before[id, trial.number]
                assert (trial.jobs, trial.seen, trial.quality) == (old.jobs, old.seen, old.quality), "untouched"
            job = client.job(trial.jobs[-1])
            assert job.spec["labels"] == {"study": id, "trial": str(trial.number)}
            assert job.is_terminal
    assert set(told) == {0, 1, 2, 3}

    third = client.submit_study({"name": "third", **study}).id
    until(lambda: client.study(third).begun >= 1, 60)
    client.stop_study(third)
    until(lambda: client.study(third).is_terminal, 60)
    assert client.study(third).state == "STOPPED"
    until(lambda: all(client.job(id).is_terminal for trial in client.trials(third) for id in trial.jobs), 60)
    assert {item.id for item in client.studies().items} >= {*ids, third}


@pytest.mark.timeout(300)
def test_after_a_kill_every_job_is_found_in_the_state_it_is_in(service: Service, client: Client) -> None:
    """The restart matrix: every state, and the service killed in each."""
    paused, ended, running = (client.submit(spec(name=name, scale=ONE)).id for name in ("paused", "ended", "running"))
    for id in (paused, ended, running):
        training(client, id, beyond=3)
    client.pause(paused)
    client.stop(ended, "before the kill")
    reach(client, paused, "PAUSED")
    reach(client, ended, "STOPPED")
    pending = client.submit(spec(name="pending", scale={"workers": 2, "cpus_per_worker": 50})).id
    until(lambda: "fit" in client.job(pending).reason)
    restart(service)
    training(client, running, beyond=client.job(running).step + 10)
    assert client.job(paused).state.value == "PAUSED"
    assert (client.job(pending).state.value, "fit" in client.job(pending).reason) == ("PENDING", True)
    assert (client.job(ended).state.value, client.job(ended).reason) == ("STOPPED", "first stopped it: before the kill")

    client.scale(running, 2)
    restart(service)  # while it is resizing
    until(lambda: client.job(running).workers == 2)
    training(client, running)

    starting = client.submit(spec(name="starting", scale=ONE)).id
    time.sleep(1.0)
    entered = client.submit(spec(name="entered", scale=ONE)).id
    restart(service)  # one is anywhere on its way up, the other perhaps only in the books
    for id in (starting, entered):
        training(client, id)

    client.stop(starting, "asked before the kill")
    restart(service)  # while it is stopping
    assert reach(client, starting, "STOPPED").reason.startswith("first stopped it: asked before the kill")

    client.stop(entered, "ends while nobody looks")
    service.kill()
    until(lambda: written_state(service, entered) == "STOPPED")
    service.start()  # it has finished meanwhile
    assert reach(client, entered, "STOPPED").reason == "first stopped it: ends while nobody looks"

    client.resume(paused)
    training(client, paused, beyond=client.job(paused).step)
    for id in (running, paused, pending):
        client.stop(id, "the test is over")
    for id in (running, paused, pending):
        assert "the test is over" in reach(client, id, "STOPPED").reason
    everybody = (running, paused, pending, ended, starting, entered)
    assert [client.job(id).launches for id in everybody] == [1] * 6, "no job was started twice"
    for id in everybody:
        assert all_numbers(client, id) == list(range(client.job(id).last_sequence + 1))


def restart(service: Service) -> None:
    service.kill()
    service.start()


def written_state(service: Service, id: str) -> str:
    return str(json.loads((service.folder / "jobs" / id / "status.json").read_text())["state"])


def all_numbers(client: Client, id: str) -> list[int]:
    page, numbers = client.events(id, limit=2000), list[int]()
    while True:
        numbers += [event.sequence for event in page.items]
        if not page.has_more:
            return numbers
        page = client.events(id, after=page.next_after, limit=2000)


@pytest.mark.timeout(240)
def test_when_ray_dies_jobs_fail_or_go_on_from_their_checkpoint(service: Service, client: Client) -> None:
    fails = client.submit(spec(name="fails", scale=ONE)).id
    resumes = client.submit(
        spec(name="resumes", scale=ONE, checkpoint={"every_rounds": 5}), on_cluster_loss="resume"
    ).id
    for id in (fails, resumes):
        training(client, id, beyond=50)
    until(lambda: client.checkpoints(resumes))
    node = json.loads((service.folder / "data" / "ray" / "node.json").read_text())
    os.killpg(node["pid"], signal.SIGKILL)
    job = reach(client, fails, "FAILED", 90)
    assert "Ray cluster" in job.reason
    assert "on_cluster_loss: resume" in job.reason
    until(lambda: client.job(resumes).launches == 2, 90)
    at = client.job(resumes).step
    until(lambda: client.job(resumes).state.value == "RUNNING" and client.job(resumes).step > at + 50, 90)
    client.stop(resumes)
    reach(client, resumes, "STOPPED")
    states = [event.data["state"] for event in client.events(resumes, kind="state").items]
    assert "RECOVERING" in states
    for path in service.sockets.glob("raysync-*"):  # nobody was left to clear these away
        shutil.rmtree(path)


def test_ctrl_c_leaves_nothing_when_nothing_runs(service: Service, client: Client) -> None:
    assert all(job.is_terminal for job in client.jobs(limit=200).items)
    assert service.ray.is_up
    service.interrupt()
    assert "stopped, and its Ray with it" in service.log
    assert not service.ray.is_up
    assert '"level": "error"' not in service.log
    left = [path.name for path in service.sockets.iterdir() if path.name.startswith("raysync-")]
    assert left == []
