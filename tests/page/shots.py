"""Pictures of the page with real jobs on a real Ray: `python -m tests.page.shots`, some four minutes.

Full size into out/page; with --readme small ones for the README into service/page/shots.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from raysync.spec import parse_spec
from raysync.study import parse_study
from service.client import Client
from tests.page.browser import Browser, Tab, chromium
from tests.serving import Service, until

OUT = Path("out/page")
SMALL = Path("service/page/shots")
ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
DIGITS: dict[str, Any] = {
    "task": {"kind": "digits", "hidden": [256]},
    "optimizer": {"kind": "sgd", "lr": 0.2},
    "scale": {"workers": 4, "max_workers": 6, "shards": 2, "cpus_per_worker": 0.5},
    "budget": {"steps": 300},
    "eval": {"every": 10},
    "seed": 7,
}
MESH: dict[str, Any] = {
    "name": "mesh",
    "task": {"kind": "char_lm", "depth": 4},
    "strategy": {"kind": "async_sparse"},
    "schedule": {"kind": "async_one_f_one_b"},
    "optimizer": {"kind": "lookahead", "beta1": 0.9},
    "scale": {"workers": 2, "stages": 4, "cpus_per_worker": 0.25},
    "budget": {"steps": 80},
    "eval": {"every": 20},
}
STUDY: dict[str, Any] = {
    "name": "ratios",
    "base": {
        "task": {"kind": "digits"},
        "strategy": {"kind": "local_sgd", "sync_every": 4},
        "compression": {"push": {"kind": "topk", "ratio": 0.05}, "pull": {"kind": "onebit"}},
        "optimizer": {"kind": "sgd", "lr": 0.2},
        "scale": {"workers": 2, "cpus_per_worker": 0.5},
        "budget": {"steps": 250},
        "eval": {"every": 10},
    },
    "space": {
        "compression.push.ratio": {"low": 0.002, "high": 0.3, "log": True},
        "strategy.sync_every": {"low": 1, "high": 16, "whole": True},
    },
    "floor": {"metric": "eval/accuracy", "at_least": 0.9},
    "trials": 12,
}
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}


def main() -> int:
    """Run the jobs and take the pictures."""
    if chromium() is None:
        print("there is no Chromium here: apt-get install chromium")
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        service = Service(Path(folder))
        try:
            with service.start() as client:
                taken = _pictures(browser, service, client)
        finally:
            service.close()
    if "--readme" in sys.argv[1:]:
        _shrink(taken)
    print(f"{len(taken)} pictures in {OUT}")
    return 0


def _pictures(browser: Browser, service: Service, client: Client) -> list[Path]:
    token = str(json.loads((service.folder / "data" / "client.json").read_text())["token"])
    study = client.submit_study(parse_study(STUDY)).id
    until(lambda: client.study(study).is_terminal, 400)
    dense = _run(client, name="dense", strategy={"kind": "bsp"}, labels={"team": "vision"})
    onebit = _run(client, name="onebit", strategy={"kind": "bsp"}, compression=ONEBIT, labels={"team": "vision"})
    mesh = _run(client, **MESH)
    ssp = {"kind": "ssp", "staleness_bound": 4}
    uneven = _run(client, name="uneven", strategy=ssp, optimizer={"kind": "sgd", "lr": 0.05})
    selsync = {"name": "selsync", "strategy": {"kind": "selsync"}, "compression": ONEBIT, "budget": {"steps": 4000}}
    live = client.submit(parse_spec({**DIGITS, **selsync})).id
    taken = list[Path]()
    with browser.tab(service.url, token, viewport=DESKTOP) as tab:
        tab.open(f"jobs/{live}")
        until(lambda: client.job(live).step >= 500, 120)
        until(lambda: _is_turned(tab, client, live), 60)
        until(lambda: client.job(live).step >= 1400, 120)
        taken += [_shot(tab, "job", whole=True), _shot(tab, "job-top")]
        tab.go("")
        tab.see(f"tr[data-job='{live}'] svg.spark")
        time.sleep(2)
        taken.append(_shot(tab, "list"))
    _ended(client, live)
    views = {
        "mesh": f"mesh/{mesh}",
        "compare": f"compare?jobs={dense},{onebit},{live}&x=bytes&logx=1",
        "study": f"studies/{study}",
        "staleness": f"jobs/{uneven}",
        "form": "submit",
        "list": "",
        "job": f"jobs/{live}",
    }
    for scheme, size, end in (("light", DESKTOP, ""), ("dark", DESKTOP, "-dark"), ("light", PHONE, "-phone")):
        with browser.tab(service.url, token, viewport=size, color_scheme=scheme, is_mobile=size is PHONE) as tab:
            tab.open()
            tab.see("main h1")
            for name, view in views.items():
                if end or name not in ("list", "job"):
                    tab.go(view)
                    time.sleep(2.5)
                    taken.append(_shot(tab, f"{name}{end}", whole=True))
    return taken


def _run(client: Client, **fields: Any) -> str:
    id = client.submit(parse_spec({**DIGITS, **fields})).id
    _ended(client, id)
    return id


def _ended(client: Client, id: str) -> None:
    until(lambda: client.job(id).is_terminal, 300)
    job = client.job(id)
    assert job.state.value == "SUCCEEDED", job.reason


def _is_turned(tab: Tab, client: Client, id: str) -> bool:
    """Try to drag the line; it moves by itself until it is turned by hand."""
    _drag(tab)
    time.sleep(0.5)
    return client.knobs(id).version > 0


def _drag(tab: Tab) -> None:
    """Turn delta down with the mouse, as a person would."""
    line = tab.see("#chart-signal [role=slider]")
    line.scroll_into_view_if_needed()
    place, over = line.bounding_box(), tab.page.locator("#chart-signal .u-over").bounding_box()
    assert place is not None
    assert over is not None
    tab.page.mouse.move(place["x"] + 300, place["y"] + place["height"] / 2)
    tab.page.mouse.down()
    tab.page.mouse.move(place["x"] + 300, over["y"] + 0.55 * over["height"], steps=8)
    tab.page.mouse.up()
    tab.page.mouse.move(2, 2)


def _shot(tab: Tab, name: str, *, whole: bool = False) -> Path:
    path = OUT / f"{name}.png"
    for notice in tab.page.get_by_role("button", name="Dismiss").all():
        notice.click()
    tab.page.evaluate("scrollTo(0, 0)")
    if whole:
        whole_view(tab, path)
    else:
        tab.page.screenshot(path=path)
    print(path, flush=True)
    return path


def whole_view(tab: Tab, path: Path) -> None:
    """Take a picture of all of a view, however long: charts draw themselves once they can be seen."""
    before = tab.page.viewport_size
    assert before is not None
    height = tab.page.evaluate("document.documentElement.scrollHeight")
    tab.page.set_viewport_size({"width": before["width"], "height": min(6000, max(before["height"], height))})
    time.sleep(1.0)
    tab.page.screenshot(path=path)
    tab.page.set_viewport_size(before)


def _shrink(taken: list[Path]) -> None:
    """Write those that the README shows, with few colours and few bytes."""
    from PIL import Image

    SMALL.mkdir(exist_ok=True)
    for path in taken:
        if path.stem in ("list", "job", "mesh", "compare", "study", "job-phone", "list-phone"):
            image = Image.open(path).convert("RGB")
            height = min(image.height, int(1.9 * image.width) if "phone" in path.stem else int(1.05 * image.width))
            image = image.crop((0, 0, image.width, height))
            width = 390 if "phone" in path.stem else 900
            image = image.resize((width, round(height * width / image.width)), Image.Resampling.LANCZOS)
            image.quantize(256, Image.Quantize.FASTOCTREE, kmeans=3, dither=Image.Dither.NONE).save(
                SMALL / path.name, optimize=True
            )


if __name__ == "__main__":
    sys.exit(main())
