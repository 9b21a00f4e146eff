"""Real clusters: nodes from the command line as children of the test, and Ray's own Cluster. Ended by their own ids."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.ray_nodes import BIN, Nodes, token_env

SPEC = """
name: spread
task: {kind: digits}
strategy: {kind: selsync, delta: 0.3}
compression: {push: {kind: onebit}, pull: {kind: onebit}}
optimizer: {kind: sgd, lr: 0.1, momentum: 0.9}
scale: {workers: 4, shards: 2, cpus_per_worker: 1}
budget: {steps: 150}
eval_every: 50
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A head and two more nodes, as in the README; yields the address and the environment that holds the token."""
    logs = tmp_path_factory.mktemp("nodes")
    nodes = Nodes(logs, token_env(logs / "home"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="rs-", dir="/tmp")
    address = f"{ray.util.get_node_ip_address()}:{port}"
    try:
        nodes.start("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}", "--num-cpus=2")
        for _ in range(2):
            nodes.start(f"--address={address}", "--num-cpus=1")
        yield address, nodes.env
    finally:
        nodes.end()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_job_spreads_over_nodes_started_from_the_command_line(
    cluster: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, env = cluster
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC)
    command = [BIN / "raysync", "run", spec, "--address", address, "--storage", tmp_path / "results", "--json"]
    answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
    assert answer.returncode == 0, answer.stderr + answer.stdout[-3000:]
    records = [json.loads(line) for line in answer.stdout.splitlines()]
    nodes = {r["data"]["name"]: r["data"]["node_id"] for r in records if r["kind"] == "actor"}
    workers = [node for name, node in nodes.items() if name.startswith("worker/")]
    assert len(workers) == 4
    assert len(set(workers)) == 3, "four workers need all three nodes"
    result = records[-1]
    assert result["state"] == "SUCCEEDED"
    assert result["metrics"]["eval/accuracy"] > 0.9
    assert result["runs"]["link"] == "direct"
    assert Path(result["model"]).exists()


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_two_studies_share_a_cluster_of_several_nodes(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """Each trial's job needs both CPUs of the first node, or one of each of the others: they wait for each other."""
    address, env = cluster
    search = {
        "name": "shared",
        "base": {
            "task": {"kind": "digits", "hidden": [16]},
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
            "scale": {"workers": 2, "cpus_per_worker": 1, "shards_in": "workers"},
            "budget": {"steps": 60},
            "eval": {"every": 20},
        },
        "space": {"optimizer.lr": {"low": 0.05, "high": 0.2}},
        "floor": {"metric": "eval/accuracy", "at_least": 0.5},
        "trials": 4,
    }
    path = tmp_path / "search.json"
    path.write_text(json.dumps(search))
    command = [BIN / "raysync", "tune", path, "--address", address, "--storage", tmp_path / "studies", "--json"]
    both = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for one in both:
        told, problem = one.communicate(timeout=280)
        assert one.returncode == 0, problem + told[-2000:]
        result = json.loads(told.splitlines()[-1])
        assert (result["state"], result["trials"]) == ("SUCCEEDED", 4)
        assert result["front"]


@pytest.mark.matrix
def test_without_the_token_a_cluster_does_not_let_anybody_in(
    cluster: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, env = cluster
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC)
    (tmp_path / "other").write_text("0" * 64)
    other = {**env, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}
    command = [BIN / "raysync", "run", spec, "--address", address, "--storage", tmp_path / "results"]
    answer = subprocess.run(command, env=other, capture_output=True, text=True, timeout=110)
    assert answer.returncode == 2
    assert "could not join" in answer.stderr
    assert "token" in answer.stderr


CLUSTER_SCRIPT = """
import ray, sys
from ray.cluster_utils import Cluster
from actors import fit
from raysync.spec import read_spec

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, log_to_driver=False)
nodes = {}
def note(record):
    if record.kind == "actor":
        nodes[record.data["name"]] = record.data["node_id"]
result = fit(read_spec(sys.argv[1]), storage_path=sys.argv[2], on_record=note)
print(result.state, len({node for name, node in nodes.items() if name.startswith("worker/")}))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.matrix
def test_a_job_spreads_over_rays_own_test_cluster(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC)
    command = [sys.executable, "-c", CLUSTER_SCRIPT, str(spec), str(tmp_path / "results")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=110, env=env)
    assert answer.stdout.split() == ["SUCCEEDED", "3"], answer.stdout + answer.stderr
