"""The files for running it for real say only what the command line, the settings and the metrics know."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
import yaml

from raysync.metrics import TOLD
from service.cli import app
from service.runtime.port import AsyncRuntime
from service.server.wiring import assemble
from service.settings import ClientSettings, Settings
from service.store import JobRow, Store

DEPLOY = Path(__file__).parents[2] / "service" / "deploy"
FILES = sorted(path for path in DEPLOY.iterdir() if path.is_file())
UNIT = DEPLOY / "raysync.service"
COMMANDS = typer.main.get_command(app)

_CALL = re.compile(r"raysync[\"',]*\s+[\"']?(serve|token|submit|list|stop)\b([^`|;&#\n]*)")
_METRIC = re.compile(r"\braysync_\w+")
_SELECTOR = re.compile(r"(raysync_\w+)\{([^}]*)\}")
_GROUPED = re.compile(r"by \(([^)]*)\)")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for document in documents("kuberay.yaml"):
        spec = document.get("spec", {})
        for group in (spec, spec.get("headGroupSpec", {}), *spec.get("workerGroupSpecs", [])):
            if "template" in group:
                yield f"{document['kind']} {group.get('groupName', '')}", group["template"]["spec"]


def calls() -> Iterator[tuple[str, list[str]]]:
    """Yield every call of raysync: from the running text of the files, and from commands that YAML spreads out."""
    for path in FILES:
        text = path.read_text().replace("\\\n", " ")
        for command, rest in _CALL.findall(text):
            yield path.name, [command, *re.split(r"[\s\"'\]),]+", rest.strip())]
    for where, pod in pods():
        for container in containers(pod):
            line = [*container.get("command", []), *container.get("args", [])]
            if line[:1] == ["raysync"]:
                yield where, line[1:]


def unknown_flags(words: list[str]) -> set[str]:
    """Return the flags of a call that its command does not have."""
    command: Any = COMMANDS
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", ()):
        command = command.commands[rest.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.partition("=")[0] for word in rest if word.startswith("--")} - known


def test_calls_use_flags_the_command_line_has() -> None:
    found = list(calls())
    used = {word.partition("=")[0] for _, words in found for word in words if word.startswith("--")}
    assert {"--host", "--ray-address", "--storage", "--allow-host", "--json", "--role", "--end"} <= used
    assert {words[1] for _, words in found if words[0] == "token"} >= {"create", "list", "revoke"}
    assert not {f"{where}: {' '.join(words)}" for where, words in found if unknown_flags(words)}


def test_a_flag_that_is_not_there_is_noticed() -> None:
    assert unknown_flags(["serve", "--hosts=0.0.0.0", "--port", "1"]) == {"--hosts"}
    assert unknown_flags(["token", "create", "anna", "--rank", "admin"]) == {"--rank"}


def test_environment_variables_are_settings() -> None:
    known = {f"RAYSYNC_{name.upper()}" for kind in (Settings, ClientSettings) for name in kind.model_fields}
    used = {name for path in FILES for name in re.findall(r"RAYSYNC_[A-Z_]*[A-Z]", path.read_text())}
    assert {"RAYSYNC_DATA", "RAYSYNC_DATABASE", "RAYSYNC_STORAGE"} <= used
    assert used <= known


def test_no_service_gives_pods_a_variable_the_settings_read() -> None:
    settings = {f"RAYSYNC_{name.upper()}" for kind in (Settings, ClientSettings) for name in kind.model_fields}
    names = [document["metadata"]["name"] for document in documents("kuberay.yaml") if document["kind"] == "Service"]
    made = {f"{name.upper().replace('-', '_')}_{end}" for name in names for end in ("PORT", "SERVICE_HOST")}
    assert made
    assert not made & settings


# Prometheus and Grafana


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[dict[str, set[str]]]:
    """Every series the service renders with one live job that has told everything, and its labels."""
    store = Store(f"sqlite:///{tmp_path / 'books.db'}")
    store.database.migrate()
    metrics: dict[str, float | None] = dict.fromkeys([metric.name for metric in TOLD], 1.0)
    store.jobs.add(
        JobRow(
            id="digits-1",
            name="digits",
            owner="anna",
            state="RUNNING",
            strategy="selsync",
            path=str(tmp_path),
            created_s=0.0,
            steps=10,
            step=5,
            metrics=metrics,
            knobs={},
        )
    )
    runtime = cast(AsyncRuntime, SimpleNamespace(cluster="here"))
    parts = assemble(Settings(data=tmp_path, storage=str(tmp_path)), store, runtime)
    parts.metrics.observe("GET", "/jobs", 200, 0.01)
    series: dict[str, set[str]] = {}
    for line in parts.metrics.render().decode().splitlines():
        if not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            series.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    yield series
    store.close()


def dashboard() -> dict[str, Any]:
    return cast(dict[str, Any], json.loads((DEPLOY / "grafana.json").read_text()))


def expressions() -> list[str]:
    board = dashboard()
    asked = [variable["definition"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    return asked + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_dashboard_asks_for_metrics_the_service_has(exported: dict[str, set[str]]) -> None:
    used = {name for expression in expressions() for name in _METRIC.findall(expression)}
    assert used <= exported.keys()
    assert len(used) >= 14


def test_dashboard_uses_labels_the_metrics_have(exported: dict[str, set[str]]) -> None:
    checked = 0
    for expression in expressions():
        for name, selector in _SELECTOR.findall(expression):
            assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= exported[name], expression
        for labels in _GROUPED.findall(expression):
            for name in _METRIC.findall(expression):
                assert set(re.split(r",\s*", labels)) <= exported[name], expression
                checked += 1
    assert checked > 10


def test_dashboard_is_whole() -> None:
    board = dashboard()
    variables = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_scrapes_keep_the_label_job_and_send_a_token() -> None:
    (scrape,) = documents("prometheus.yml")[0]["scrape_configs"]
    (endpoint,) = documents("servicemonitor.yaml")[0]["spec"]["endpoints"]
    assert scrape["honor_labels"] is True
    assert endpoint["honorLabels"] is True
    assert scrape["authorization"]["credentials_file"]
    assert endpoint["authorization"]["credentials"]["name"]


# Kubernetes


@pytest.mark.parametrize("name", ["kuberay.yaml", "servicemonitor.yaml"])
def test_documents_are_objects_of_kubernetes(name: str) -> None:
    found = documents(name)
    assert found
    assert all(document["apiVersion"] and document["kind"] and document["metadata"]["name"] for document in found)


def test_everything_wanted_is_there() -> None:
    kinds = {(document["apiVersion"], document["kind"]) for document in documents("kuberay.yaml")}
    assert kinds == {
        ("v1", "Secret"),
        ("v1", "PersistentVolumeClaim"),
        ("ray.io/v1", "RayCluster"),
        ("apps/v1", "Deployment"),
        ("v1", "Service"),
    }


def test_pods_run_as_nobody_special_with_what_they_refer_to() -> None:
    secrets = {d["metadata"]["name"]: d["stringData"] for d in documents("kuberay.yaml") if d["kind"] == "Secret"}
    claims = {d["metadata"]["name"] for d in documents("kuberay.yaml") if d["kind"] == "PersistentVolumeClaim"}
    found = list(pods())
    assert len(found) == 3
    for where, pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True, where
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v
        } <= claims
        for container in containers(pod):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, container["name"]
            assert container["resources"]["requests"], container["name"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys(), container["name"]
            env = {entry["name"]: entry for entry in container["env"]}
            assert env["RAY_AUTH_MODE"]["value"] == "token", container["name"]
            for entry in env.values():
                key = entry.get("valueFrom", {}).get("secretKeyRef")
                assert key is None or key["key"] in secrets[key["name"]], container["name"]


def test_service_is_probed_and_reached_where_it_listens() -> None:
    (deployment,) = (d for d in documents("kuberay.yaml") if d["kind"] == "Deployment")
    (service,) = (d for d in documents("kuberay.yaml") if d["kind"] == "Service")
    (cluster,) = (d for d in documents("kuberay.yaml") if d["kind"] == "RayCluster")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["shareProcessNamespace"] is True  # else the gateway does not find the Ray node beside it
    serve, ray = pod["containers"]
    assert serve["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert serve["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert serve["ports"] == [{"name": "http", "containerPort": Settings.model_fields["port"].default}]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert f"--allow-host={service['metadata']['name']}" in serve["args"]
    head = f"{cluster['metadata']['name']}-head-svc:6379"
    assert f"--ray-address={head}" in serve["args"]
    assert f"--address={head}" in ray["command"]


def test_cluster_has_the_ray_of_the_constraints() -> None:
    (cluster,) = (d for d in documents("kuberay.yaml") if d["kind"] == "RayCluster")
    pinned = (DEPLOY.parents[1] / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster['spec']['rayVersion']}" in pinned


# The first token


def test_first_token_is_made_once_and_not_shown(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path), "RAYSYNC_DATA": str(data)}
    printed = ""
    for _ in range(2):
        ran = subprocess.run(
            ["sh", DEPLOY / "first-token"], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        printed += ran.stdout + ran.stderr
    token = json.loads((data / "client.json").read_text())["token"]
    assert token.startswith("rs_")
    assert token not in printed
    assert (data / "client.json").stat().st_mode & 0o777 == 0o600
    store = Store(f"sqlite:///{data / 'raysync.db'}")
    assert [row.role for row in store.tokens.all()] == ["admin"]
    store.close()


# systemd and Docker


def test_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    # It wants the programs to exist, and takes what it cannot parse for a warning.
    for name in ("raysync", "raysync-first-token"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/raysync/bin/", f"{tmp_path}/"))
    command = ["systemd-analyze", "verify", "--man=no", unit]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    complaints = [line for line in ran.stderr.splitlines() if UNIT.name in line]
    assert (ran.returncode, complaints) == (0, []), ran.stderr


def test_unit_leaves_a_ray_of_its_own_alone() -> None:
    lines = UNIT.read_text().splitlines()
    assert {"KillMode=process", "PrivateTmp=no", "OOMPolicy=continue", "Restart=on-failure"} <= set(lines)


def test_image_copies_what_exists_and_may_be_seen() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    sources = [word for line in text.splitlines() if line.startswith("COPY") for word in shlex.split(line)[1:-1]]
    assert sources
    assert not [source for source in sources if not (DEPLOY.parents[1] / source).exists()]
    seen = {line.removeprefix("!") for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()}
    assert set(sources) <= seen
    assert re.search(r"^USER (?!0|root)", text, re.MULTILINE)
