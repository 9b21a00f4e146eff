"""README's curl commands: what they send is what the routes take."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.service.conftest import World, until

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_what_readmes_curl_sends_is_taken(world: World) -> None:
    sent = re.findall(r'curl -H "\$H" -H "\$J"(?: -X (\w+))? \$U(\S+) -d \'(.*?)\'', README)
    assert [(method or "POST", path) for method, path, _ in sent] == [
        ("POST", "/jobs"),
        ("PATCH", "/jobs/ID/knobs"),
        ("PUT", "/jobs/ID/workers"),
    ]
    answer = world.call("POST", "/api/v1/jobs", json=json.loads(sent[0][2]))
    assert answer.status_code == 201, answer.text
    id = answer.json()["id"]
    until(lambda: id in world.runtime.alive)
    world.runtime.enter(id, "RUNNING")
    until(lambda: world.job(id)["state"] == "RUNNING")
    for method, path, body in sent[1:]:
        answer = world.call(method, f"/api/v1{path.replace('ID', id)}", json=json.loads(body))
        assert answer.status_code in (200, 202), answer.text
