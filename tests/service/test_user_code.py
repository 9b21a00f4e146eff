"""What an operator's job can bring along, and what of the service it cannot see."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from raysync.errors import RuntimeLost, SpecError
from raysync.spec import parse_spec
from service.cli.serve import read_settings
from service.http.vetting import confined
from service.runtime.local_ray import EmbeddedRay
from service.security.scrubbing import scrubbed, without_own
from service.server.app import create_app
from service.server.wiring import assemble, build
from service.store import Store
from tests.service.conftest import SPEC, World, settings_for, tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_packages import GOOD

SECRETS = {
    "RAYSYNC_DATABASE": "postgresql://raysync:hunter2@db/raysync",
    "RAYSYNC_TOKEN": "rs_00000000_hunter2",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "GITHUB_TOKEN": "hunter2",
    "PGPASSWORD": "hunter2",
    "RAY_AUTH_TOKEN": "hunter2",
    "RAY_REDIS_PASSWORD": "hunter2",
    "HTTP_PROXY": "http://me:hunter2@proxy:3128",
    "PIP_INDEX_URL": "https://me:hunter2@index/simple",
    "SOMETHING_ELSE": "hunter2",
}
HARMLESS = {"PATH": "/bin", "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
CUSTOM = {**SPEC, "task": {"kind": "custom", "entrypoint": "my_task:Task"}}

Serving = Callable[..., World]


@pytest.fixture
def serving(tmp_path: Path, store: Store) -> Iterator[Serving]:
    """Starts the service with settings of the test's choice."""
    started: list[TestClient] = []

    def start(**changes: Any) -> World:
        runtime = StillRuntime()
        parts = assemble(settings_for(tmp_path, **changes), store, runtime)
        http = TestClient(create_app(parts), raise_server_exceptions=False)
        http.__enter__()
        started.append(http)
        return World(http, parts, runtime, tokens_for(store))

    yield start
    for http in started:
        http.__exit__(None, None, None)


def test_only_what_is_harmless_or_named_is_passed_on() -> None:
    assert scrubbed({**SECRETS, **HARMLESS}) == HARMLESS
    assert scrubbed(SECRETS, ["AWS_SECRET_ACCESS_KEY"]) == {"AWS_SECRET_ACCESS_KEY": "hunter2"}
    assert scrubbed({"https_proxy": "http://proxy:3128"}) == {"https_proxy": "http://proxy:3128"}
    kept = without_own({**SECRETS, **HARMLESS})
    assert not [name for name in kept if name.startswith("RAYSYNC_")]
    assert kept["AWS_SECRET_ACCESS_KEY"], "a gateway to another's cluster reads its storage"


def test_the_ray_of_the_service_sees_nothing_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a node that only writes down its environment: the one all workers, and so all user code, inherit."""
    fake = tmp_path / "fake"
    fake.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen.part; mv {tmp_path}/seen.part {tmp_path}/seen\nexec sleep 100\n")
    fake.chmod(0o700)
    monkeypatch.setattr("service.runtime.local_ray.sys.executable", str(fake))
    for name, value in {**SECRETS, "MY_OWN": "wanted"}.items():
        monkeypatch.setenv(name, value)
    settings = settings_for(tmp_path, database=f"sqlite:///{tmp_path}/books.db", pass_env=("MY_OWN",))
    parts, node = build(settings)
    assert node is not None

    def wait() -> None:
        with pytest.raises(RuntimeLost):
            node.address()

    waiting = threading.Thread(target=wait)
    waiting.start()
    until((tmp_path / "seen").exists)
    node.give_up()
    waiting.join(20)
    parts.store.close()
    seen = (tmp_path / "seen").read_text()
    assert "hunter2" not in seen
    assert "RAYSYNC_" not in seen
    assert "MY_OWN=wanted" in seen
    assert f"PATH={os.environ['PATH']}" in seen
    assert "hunter2" not in str(EmbeddedRay(tmp_path / "ray", {**os.environ, **SECRETS}, 1).env)


def test_a_service_without_user_code_says_so(serving: Serving) -> None:
    world = serving(no_user_code=True, allow_entrypoints=("my_task:*",))
    bodies = [({"spec": CUSTOM}, "spec.task.kind"), ({"spec": SPEC, "package": "0" * 64}, "package")]
    bodies += [({"spec": SPEC, "pip": ["requests"]}, "pip")]
    for body, field in bodies:
        answer = world.call("POST", "/api/v1/jobs", json=body)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:raysync:user-code-refused")
        assert answer.json()["errors"][0]["field"] == field
        assert "--no-user-code" in answer.json()["detail"]
    answer = world.call("POST", "/api/v1/packages", content=GOOD, headers={"Content-Type": "application/zip"})
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:raysync:user-code-refused")
    assert world.parts.store.packages.ids() == set()
    assert world.submit(), "built-in tasks run"


def test_a_built_in_task_has_nothing_installed(serving: Serving) -> None:
    world = serving(allow_entrypoints=("my_task:*",))
    answer = world.call("POST", "/api/v1/jobs", json={"spec": SPEC, "pip": ["requests"]})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "pip")
    assert "built in" in answer.json()["detail"]
    assert world.call("POST", "/api/v1/jobs", json={"spec": CUSTOM, "pip": ["requests"]}).status_code == 201


def test_built_in_tasks_read_only_below_the_data_root(serving: Serving, tmp_path: Path) -> None:
    root, secret = tmp_path / "corpora", tmp_path / "secret.txt"
    (root / "mnist").mkdir(parents=True)
    (root / "bad").mkdir()
    (root / "text.txt").write_text("x")
    secret.write_text("secret")
    (root / "way-out").symlink_to(secret)
    (root / "up").symlink_to(tmp_path)
    (root / "way-in").symlink_to(root / "text.txt")
    (root / "bad" / "train-images-idx3-ubyte").symlink_to(secret)
    world = serving(data_root=root)
    inside = [
        ("text.txt", root / "text.txt"),
        (str(root / "text.txt"), root / "text.txt"),
        ("way-in", root / "text.txt"),
    ]
    for given, path in inside:
        id = world.submit(spec={"task": {"kind": "char_lm", "corpus": given}})
        assert world.job(id)["spec"]["task"]["corpus"] == str(path)
    world.submit(spec={"task": {"kind": "mnist", "folder": "mnist"}})
    tasks = [
        *({"kind": "char_lm", "corpus": path} for path in ("/etc/passwd", "../secret.txt", "way-out", "up/secret.txt")),
        *({"kind": "char_lm", "corpus": path} for path in (str(secret), "a\x00b", "up", "mnist/../../secret.txt")),
        *({"kind": "mnist", "folder": path} for path in ("/etc", "..", "bad", f"{root}-other", "up/corpora/../..")),
    ]
    for task in tasks:
        answer = world.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, "task": task}})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:raysync:invalid-specification"), task
        field = "corpus" if "corpus" in task else "folder"
        assert answer.json()["errors"][0]["field"] == f"spec.task.{field}"
    long = world.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, "task": {"kind": "mnist", "folder": "x" * 9000}}})
    assert long.status_code in (201, 422)


def test_without_a_data_root_no_file_is_read(serving: Serving) -> None:
    world = serving()
    task = {"kind": "char_lm", "corpus": "/etc/passwd"}
    answer = world.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, "task": task}})
    assert answer.status_code == 422
    assert "--data-root" in answer.json()["detail"]
    assert world.submit(spec={"task": {"kind": "char_lm"}}), "its own corpus is no file of the operator's"
    spec = parse_spec({"task": {"kind": "digits"}})
    assert confined(spec, None) is spec
    with pytest.raises(SpecError, match="data-root"):
        confined(parse_spec({"task": task}), None)


def test_the_new_options_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSYNC_NO_USER_CODE", "1")
    settings = read_settings({"data": tmp_path, "data_root": Path("~/corpora"), "pass_env": ("A", "B")})
    assert (settings.no_user_code, settings.pass_env) == (True, ("A", "B"))
    assert settings.data_root == Path.home() / "corpora"
    assert not read_settings({"data": tmp_path, "no_user_code": False}).no_user_code
    shutil.rmtree(tmp_path, ignore_errors=True)
