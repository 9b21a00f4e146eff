"""Studies on a real Ray: trials are ordinary jobs, and what is known survives whoever runs the study."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysync.study import Kind, State, StudySpec, Trial, parse_study
from tests.ray_nodes import BIN
from tune_configs.launcher import DirectLauncher
from tune_configs.store import StudyStore
from tune_configs.study import Study, StudyResult

BASE: dict[str, Any] = {
    "name": "digits",
    "task": {"kind": "digits", "hidden": [16]},
    "strategy": {"kind": "selsync", "delta": 0.1},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "scale": {"workers": 1, "cpus_per_worker": 0.5, "shards_in": "workers"},
    "budget": {"steps": 120},
    "eval": {"every": 20},
}
RATES = {"optimizer.lr": {"choice": [0.1, 1e-6]}}
FLOOR = {"metric": "eval/accuracy", "at_least": 0.85}


def study(**changes: Any) -> StudySpec:
    return parse_study({"name": "small", "base": BASE, "space": RATES, "floor": FLOOR, **changes})


def run(spec: StudySpec, folder: Path) -> tuple[StudyResult, StudyStore]:
    store = StudyStore.create(folder, spec)
    result = Study(store, launcher=DirectLauncher(str(store.folder / "jobs"))).run()
    return result, store


@pytest.mark.timeout(240)
def test_a_study_stops_bad_trials_early_and_answers_with_jobs(storage: str, tmp_path: Path) -> None:
    asha = {"kind": "asha", "grace_steps": 20, "reduction": 2}
    result, store = run(study(trials=6, scheduler=asha, search={"kind": "random"}, seed=3, max_concurrent=2), tmp_path)
    assert result.state == "SUCCEEDED", result.reason
    trials = result.trials
    assert [trial.kind for trial in trials[:3]] == [Kind.OWN, Kind.DENSE, Kind.SEARCHED]
    bad = [trial for trial in trials if trial.point.get("optimizer.lr") == 1e-6]
    assert bad
    assert {trial.state for trial in trials[:2]} == {State.REACHED}, "what others are compared with runs to its end"
    assert State.STOPPED in {trial.state for trial in bad}
    for trial in bad:
        if trial.state is State.STOPPED:
            assert trial.rungs
            assert "asha: others were better" in trial.reason
            assert trial.seen[-1].step < 100
    assert not {trial.number for trial in bad} & {trial.number for trial in result.outcome.front}
    assert store.trials() == list(trials)
    job = json.loads((store.folder / "jobs" / trials[2].jobs[0] / "job.json").read_text())
    assert job["labels"] == {"study": store.id, "trial": "2"}
    assert (store.folder / "picks" / "smallest.yaml").exists()
    assert result.outcome.picks[0].trial.total_bytes < (trials[1].total_bytes or 0), "fewer bytes than dense"


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_a_population_turns_knobs_of_running_jobs(storage: str, tmp_path: Path) -> None:
    base = {**BASE, "task": {"kind": "custom", "entrypoint": "tests.drowsy:Drowsy"}, "budget": {"steps": 600}}
    base["scale"] = {**BASE["scale"], "cpus_per_worker": 0.25}
    space = {"optimizer.lr": {"low": 1e-5, "high": 0.2, "log": True}}
    pbt = {"kind": "pbt", "every_steps": 100, "quantile": 0.5}
    spec = study(base=base, space=space, trials=2, scheduler=pbt, search={"kind": "random"}, seed=1)
    seen: dict[int, list[tuple[int | None, dict[str, int]]]] = {}
    store = StudyStore.create(tmp_path, spec)
    launcher = DirectLauncher(str(store.folder / "jobs"))

    def watch(trial: Trial) -> None:
        seen.setdefault(trial.number, []).append((trial.knob_version, dict(trial.pids)))

    result = Study(store, launcher=launcher, on_change=watch).run()
    assert result.state == "SUCCEEDED", result.reason
    versions = {number: [version for version, _ in found if version] for number, found in seen.items()}
    turned = [number for number, found in versions.items() if found]
    assert turned, "somebody took over another's knobs"
    for number, found in seen.items():
        pids = [each["worker/0"] for _, each in found if "worker/0" in each]
        assert len(set(pids)) == 1, "no job was started again"
        assert len(result.trials[number].jobs) == 1


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_trials_fail_each_with_its_reason_and_the_study_goes_on(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tune_configs.room._PATIENCE_S", 1.0)
    modes = {"nan": "the loss is NaN", "memory": "allocate memory", "raises": "a column that is not there", "fine": ""}
    space = {
        "task.args.mode": {"choice": [*reversed(modes)]},
        "scale.workers": {"choice": [2, 1, 99]},
        "scale.min_workers": {"choice": [1, 2]},
    }
    base = {**BASE, "task": {"kind": "custom", "entrypoint": "tests.troubled:Troubled"}}
    spec = study(
        base=base,
        space=space,
        trials=14,
        max_failures=14,
        max_concurrent=3,
        search={"kind": "random"},
        scheduler={"kind": "none"},
        seed=6,
    )
    result, _ = run(spec, tmp_path)
    assert result.state == "SUCCEEDED", result.reason
    found: dict[str, int] = {}
    for trial in result.trials[2:]:
        workers, fewest, mode = (trial.point[path] for path in ("scale.workers", "scale.min_workers", "task.args.mode"))
        kind = "together" if fewest > workers else "room" if workers == 99 else mode
        words = {"together": "min_workers", "room": "99 never will", **modes}[kind]
        found[kind] = found.get(kind, 0) + 1
        assert words in trial.reason, trial
        assert (trial.state is State.FAILED) == (kind != "fine"), trial
    assert {*found} == {"together", "room", *modes}, "the seed is one that draws all of them"
    assert f"{sum(found.values()) - found['fine']} failed" in result.reason
    assert result.outcome.front


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_a_study_whose_trials_all_fail_alike_is_over_soon_and_says_why(storage: str, tmp_path: Path) -> None:
    task = {"kind": "custom", "entrypoint": "tests.troubled:Troubled", "args": {"mode": "nan"}}
    result, _ = run(study(base={**BASE, "task": task}, trials=40, max_failures=3, max_concurrent=2), tmp_path)
    assert result.state == "FAILED"
    assert "3 trials in a row failed" in result.reason
    assert "the loss is NaN" in result.reason
    assert len(result.trials) <= 5
    assert not result.outcome.front


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_several_seeds_by_predicted_time_with_median_stopping(storage: str, tmp_path: Path) -> None:
    objective = {"minimise": "predicted_s", "at_mbit": 10}
    median = {"kind": "median", "grace_steps": 40, "min_trials": 2}
    result, store = run(study(trials=5, seeds=2, objective=objective, scheduler=median, max_concurrent=2), tmp_path)
    assert result.state == "SUCCEEDED", result.reason
    reached = [trial for trial in result.trials if trial.state is State.REACHED]
    assert len(reached) >= 3
    for trial in reached:
        jobs = [json.loads((store.folder / "jobs" / id / "job.json").read_text()) for id in trial.jobs]
        assert len({job.get("seed", 0) for job in jobs}) == 2
        first = next(seen for seen in trial.seen if seen.quality >= 0.85)
        assert 0 < first.compute_s < 0.5, "a step's computing is measured"
        assert trial.cost is not None
        assert trial.cost > 8 * first.bytes / 10e6 / 2, "the mean of two seeds; the first's share of the line alone"
    dense = result.trials[1]
    assert result.outcome.picks[0].trial.cost < (dense.cost or 0.0)
    assert "x sooner" in result.reason


@pytest.mark.matrix
@pytest.mark.timeout(400)
def test_ctrl_c_ends_a_study_with_what_was_found_and_it_goes_on_later(tmp_path: Path) -> None:
    search = {"name": "mine", "base": BASE, "space": RATES, "floor": FLOOR, "trials": 30, "max_concurrent": 2}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(search))
    command = [BIN / "raysync", "tune", tmp_path / "mine.yaml", "--storage", tmp_path / "studies"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert first.stderr is not None
    over = 0
    for line in first.stderr:
        over += line.startswith("trial ")
        if over == 3:
            break
    first.send_signal(signal.SIGINT)
    out, told = first.communicate(timeout=60)
    assert first.returncode == 130, told + out
    assert "interrupted: ending the trials that run" in told
    assert out.startswith("STOPPED: ")
    assert "x fewer bytes" in out or "without fewer bytes" in out
    (folder,) = (tmp_path / "studies").iterdir()
    assert f"go on with  raysync tune --resume {folder.name} --storage {tmp_path}" in out
    assert len({*(folder / "picks").glob("*.yaml")}) == 3
    store = StudyStore(folder)
    before = {trial.number: trial for trial in store.trials() if trial.state.is_over}
    assert len(before) < 10
    listed = subprocess.run([*command[:2], "--list", *command[3:]], capture_output=True, text=True, timeout=60).stdout
    assert f"{len(before)} of 30 trials over" in listed
    again = [*command[:2], "--resume", folder.name, "--trials", str(len(before) + 2), *command[3:], "--json"]
    done = subprocess.run(again, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    after = {trial.number: trial for trial in store.trials()}
    assert len(after) == len(before) + 2
    assert {number: after[number] for number in before} == before
    done = subprocess.run([*again[:4], *command[3:], "--json"], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1])["left"] == 0, "nothing is left: the answer again, at once"


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_a_search_that_comes_with_raysync_runs(tmp_path: Path) -> None:
    command = [BIN / "raysync", "tune", "compression_ratio", "--trials", "3", "--storage", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "smallest    trial 0: eval/accuracy 0.9" in done.stdout
    assert (tmp_path / done.stdout.partition("folder      ")[2].strip().rpartition("/")[2] / "front.png").exists()


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_a_search_goes_around_a_users_own_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(BASE))
    around = ["--job", tmp_path / "job.yaml", "--set", "floor.at_least=0.9", "--trials", "3"]
    command = [BIN / "raysync", "tune", "compression_ratio", *around, "--storage", tmp_path / "studies"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr + done.stdout
    (folder,) = (tmp_path / "studies").iterdir()
    own = json.loads((folder / "jobs" / StudyStore(folder).trials()[0].jobs[0] / "job.json").read_text())
    assert own["task"]["hidden"] == [16], "the first trial is the user's own job"
    assert StudyStore(folder).spec().floor.at_least == 0.9


@pytest.mark.matrix
@pytest.mark.timeout(400)
def test_a_killed_driver_is_resumed_and_finished_trials_stay(tmp_path: Path) -> None:
    """The command line itself, with a user's own search and task."""
    (tmp_path / "mine.py").write_text(
        "from raysync.tasks import Digits\n\n\nclass Mine(Digits):\n    hidden: tuple[int, ...] = (16,)\n"
    )
    search = {
        "name": "mine",
        "base": {**BASE, "task": {"kind": "custom", "entrypoint": "mine:Mine"}},
        "space": {"optimizer.lr": {"low": 0.02, "high": 0.2, "log": True}},
        "floor": FLOOR,
        "trials": 5,
        "max_concurrent": 1,
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(search))
    common = ["--storage", str(tmp_path / "studies"), "--working-dir", str(tmp_path), "--json"]
    first = subprocess.Popen(
        [BIN / "raysync", "tune", str(tmp_path / "mine.yaml"), *common],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    over: set[int] = set()
    assert first.stdout is not None
    for line in first.stdout:
        told = json.loads(line)
        if told["kind"] == "trial" and told["state"] == "REACHED":
            over.add(told["number"])
        if len(over) == 2 and told.get("seen"):
            break
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(30)
    first.stdout.close()
    (folder,) = (tmp_path / "studies").iterdir()
    before = {trial.number: trial for trial in StudyStore(folder).trials() if trial.state.is_over}
    assert len(before) >= 2
    time.sleep(1)
    again = subprocess.run(
        [BIN / "raysync", "tune", "--resume", folder.name, "--trials", "+1", *common],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert again.returncode == 0, again.stderr + again.stdout[-2000:]
    result = json.loads(again.stdout.splitlines()[-1])
    assert (result["state"], result["trials"], result["left"]) == ("SUCCEEDED", 6, 0)
    after = {trial.number: trial for trial in StudyStore(folder).trials()}
    assert {number: after[number] for number in before} == before
    assert all(trial.state.is_over and trial.state is not State.FAILED for trial in after.values())
