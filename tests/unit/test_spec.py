"""Job specifications: what is accepted, and what is refused with the field, the value and the remedy."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysync.errors import SpecError
from raysync.spec import JobSpec, as_written, parse_spec, parse_text, read_spec
from raysync.sync import SelSync

EXAMPLE = """
name: digits-selsync
task: {kind: digits}
strategy: {kind: selsync, delta: 0.3, aggregate: parameters, overlap: false}
compression:
  push: {kind: topk, ratio: 0.01}
  pull: {kind: onebit}
  error_feedback: true
optimizer: {kind: sgd, lr: 0.05, momentum: 0.9}
outer: {kind: sgd, lr: 1.0}
data: {partition: seldp, batch_size: 32, injection: null, label_skew: null}
scale: {workers: 4, min_workers: 2, max_workers: 8, shards: 2, stages: 1, cpus_per_worker: 1, gpus_per_worker: 0}
budget: {steps: 2000, time_s: null, target: {metric: eval/accuracy, value: 0.97}}
checkpoint: {every_rounds: 50, keep: 3}
eval_every: 100
seed: 7
"""


def _with(**changes: Any) -> dict[str, Any]:
    return {"task": {"kind": "digits"}, **changes}


def test_example_reads_and_survives_json_and_pickle(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(EXAMPLE)
    spec = read_spec(file)
    assert spec.strategy.kind == "selsync"
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_infinite_delta_survives_json() -> None:
    spec = parse_spec(_with(strategy={"kind": "selsync", "delta": float("inf")}))
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


REFUSED = [
    # what is wrong, the field named, the value named, a word of the remedy
    (_with(nonsense=1), "nonsense", "1", "no such field"),
    (_with(strategy={"kind": "selsync", "dleta": 0.3}), "strategy.dleta", "0.3", "did you mean 'delta'"),
    (_with(strategy={"kind": "bulk"}), "strategy.kind", "'bulk'", "'bsp'"),
    (_with(strategy={}), "strategy.kind", "", "required"),
    (_with(compression={"push": {"kind": "topk", "ratio": 0}}), "compression.push.ratio", "0", "greater than 0"),
    (_with(compression={"push": {"kind": "topk"}}), "compression.push.ratio", "", "required"),
    (_with(compression={"pull": {"kind": "zip"}}), "compression.pull.kind", "'zip'", "'topk'"),
    (
        _with(compression={"push": {"kind": "randomk", "ratio": 0.1, "unbiased": True}}),
        "compression.error_feedback",
        "True",
        "unbiased false",
    ),
    (_with(compression={"pull": {"kind": "qsgd", "levels": 4}}), "compression.error_feedback", "True", "more levels"),
    (_with(scale={"workers": 2, "min_workers": 3}), "scale", "3", "min_workers=3 must be <= workers=2"),
    (_with(scale={"workers": 5, "max_workers": 4}), "scale", "4", "max_workers=4 must be >= workers=5"),
    (_with(scale={"workers": 0}), "scale.workers", "0", "greater than or equal to 1"),
    (_with(scale={"stages": 2}), "(top level)", "2", "`schedule` is needed"),
    (_with(schedule={"kind": "gpipe"}), "(top level)", "1", "only then"),
    (
        _with(budget={"target": {"metric": "eval/bleu", "value": 1}}),
        "budget",
        "eval/bleu",
        "it has eval/loss, eval/accuracy",
    ),
    (_with(budget={"target": {"metric": "train/loss", "value": 1}}), "budget", "train/loss", "evaluation metric"),
    (_with(strategy={"kind": "async_sparse", "sparse_fraction": 0.4}), "strategy", "0.4", "ema_beta > 0.555"),
    (_with(strategy={"kind": "selsync", "delta": -1}), "strategy.delta", "-1", "greater than or equal to 0"),
    (_with(strategy={"kind": "selsync", "delta": float("nan")}), "strategy.delta", "nan", "greater than or equal"),
    (
        _with(strategy={"kind": "selsync", "min_interval": 4, "max_interval": 2}),
        "strategy",
        "2",
        "max_interval=2 must be >=",
    ),
    (
        _with(strategy={"kind": "selsync", "target_lssr": 0.9, "signal": {"kind": "fixed", "rate": 0.1}}),
        "strategy",
        "0.9",
        "threshold",
    ),
    (
        _with(strategy={"kind": "ssp", "staleness_bound": -1}),
        "strategy.staleness_bound",
        "-1",
        "greater than or equal to 0",
    ),
    (_with(strategy={"kind": "fedavg", "participation": 0}), "strategy.participation", "0", "greater than 0"),
    (_with(outer={"kind": "sgd", "lr": 1.0}), "(top level)", "sgd", "leave `outer` out"),
    (_with(optimizer={"kind": "sgd", "nesterov": True}), "optimizer", "True", "momentum > 0"),
    (_with(inner_state="reset"), "(top level)", "reset", "averages parameters"),
    (_with(data={"label_skew": 2}), "data.label_skew", "2", "less than or equal to 1"),
    ({"task": {"kind": "quadratic"}, "data": {"label_skew": 1.0}}, "(top level)", "1.0", "needs a task with labels"),
    ({"task": {"kind": "custom", "entrypoint": "os.system"}}, "task.entrypoint", "'os.system'", "my_module:MyTask"),
    ({"task": {"kind": "char_lm", "width": 10, "heads": 4}}, "task", "10", "multiple of heads=4"),
    (_with(name="Not A Name"), "name", "'Not A Name'", "at most 63 small letters"),
    ({}, "task", "", "required"),
]


@pytest.mark.parametrize(("data", "field", "value", "remedy"), REFUSED, ids=[row[1] + " " + row[2] for row in REFUSED])
def test_refusal_names_field_value_and_remedy(data: dict[str, Any], field: str, value: str, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    problem = next(problem for problem in caught.value.problems if problem.field == field)
    assert value in str(problem)
    assert remedy in str(problem)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(_with(seed=-1, eval={"every": 0}, name="Not A Name"))
    assert {problem.field for problem in caught.value.problems} == {"seed", "eval.every", "name"}


@pytest.mark.parametrize("text", ["- a\n- list", "{a: [", "\x00", ""])
def test_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(SpecError):
        read_spec(file)
    with pytest.raises(SpecError, match="cannot be read"):
        read_spec(tmp_path / "absent.yaml")


def test_yaml_objects_are_not_constructed(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("task: !!python/object/apply:os.getcwd []")
    with pytest.raises(SpecError):
        read_spec(file)


def test_outer_is_chosen_by_the_strategy() -> None:
    data = yaml.safe_load(EXAMPLE) | {"outer": None}
    assert parse_spec(data).server_optimizer.lr == 1.0
    assert parse_spec(data | {"strategy": {"kind": "bsp"}}).server_optimizer == parse_spec(data).optimizer
    diloco = parse_spec(data | {"strategy": {"kind": "diloco"}}).server_optimizer
    assert (diloco.lr, diloco.momentum, diloco.nesterov) == (0.7, 0.9, True)


def test_a_field_of_another_kind_is_named_as_that(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'delta' belongs to kind selsync"):
        parse_spec({"name": "a", "task": {"kind": "digits"}, "strategy": {"kind": "bsp", "delta": 0.3}})
    (tmp_path / "job.yaml").touch()
    with pytest.raises(SpecError, match=r"job.yaml: is empty"):
        read_spec(tmp_path / "job.yaml")


def test_the_older_name_of_a_field_is_accepted() -> None:
    old = parse_spec(_with(eval_every=7))
    assert old == parse_spec(_with(eval={"every": 7}))
    assert as_written(old)["eval"] == {"every": 7}
    assert "eval_every" not in old.model_dump()
    assert (
        JobSpec.model_validate_json(
            '{"task": {"kind": "digits", "hidden": [4]}, "eval_every": 7}', strict=True
        ).eval.every
        == 7
    )
    assert parse_spec({"task": {"kind": "digits"}}).eval.every == 100
    with pytest.raises(SpecError, match="eval_every: got 0"):
        parse_spec({"task": {"kind": "digits"}, "eval_every": 0})
    with pytest.raises(SpecError, match="give only that one"):
        parse_spec({"task": {"kind": "digits"}, "eval_every": 7, "eval": {"every": 8}})


def test_words_that_older_yaml_takes_for_truth_values_are_words() -> None:
    text = b"task: {kind: digits}\neval: {every: 5, on: evaluator}\nstrategy: {kind: selsync, overlap: yes}\n"
    found = parse_text(text, "job.yaml")
    assert (found.eval.every, found.eval.on) == (5, "evaluator")
    assert found.strategy == SelSync(overlap=True)
    flags = parse_text(b"task: {kind: digits}\ncompression: {error_feedback: false}", "job.yaml")
    assert flags.compression.error_feedback is False
    with pytest.raises(SpecError, match="error_feedback"):
        parse_text(b"task: {kind: digits}\ncompression: {error_feedback: never}", "job.yaml")


@pytest.mark.parametrize("delta", [10**400, True, [1], None, "often", -0.1, float("nan")])
def test_a_threshold_that_is_none_is_refused_with_what_would_be_right(delta: Any) -> None:
    with pytest.raises(SpecError, match="a number greater than or equal to 0, inf, or auto"):
        parse_spec(_with(strategy={"kind": "selsync", "delta": delta}))
