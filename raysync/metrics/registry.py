"""Every metric there is, in the order in which people look at them; a task may measure evaluations beside these."""

from __future__ import annotations

from raysync.metrics.metric import Combine, Metric, Prometheus, Short

_EVAL = "eval/"


def _payload(direction: str) -> Prometheus:
    return Prometheus(
        "raysync_payload_bytes",
        "Payload sent.",
        "Payload sent by all jobs there ever were.",
        {"direction": direction},
        from_start=True,
    )


METRICS: tuple[Metric, ...] = (
    Metric(
        name="train/loss",
        combine=Combine.WEIGHTED,
        text="Last training loss.",
        prometheus=Prometheus("raysync_train_loss"),
        short=Short("loss", "{:.3f}"),
    ),
    Metric(
        name="eval/accuracy",
        unit="ratio",
        combine=Combine.EVALUATION,
        text="Last evaluation accuracy.",
        prometheus=Prometheus("raysync_eval_accuracy_ratio"),
        short=Short("accuracy", "{:.1f} %", 100.0),
    ),
    Metric(
        name="eval/loss",
        combine=Combine.EVALUATION,
        text="Last evaluation loss.",
        prometheus=Prometheus("raysync_eval_loss"),
    ),
    Metric(
        name="eval/round",
        unit="rounds",
        combine=Combine.EVALUATION,
        text="Synchronisation after which the evaluated model was; -1 for the first model of all.",
    ),
    Metric(
        name="sync/lssr",
        unit="ratio",
        combine=Combine.JOB,
        text="Share of steps without synchronisation.",
        prometheus=Prometheus("raysync_lssr_ratio"),
        short=Short("LSSR"),
    ),
    Metric(
        name="comm/bytes_up",
        unit="bytes",
        combine=Combine.TOTAL,
        text="Payload that workers sent to shards.",
        is_total=True,
        prometheus=_payload("up"),
        short=Short("sent"),
    ),
    Metric(
        name="comm/bytes_down",
        unit="bytes",
        combine=Combine.TOTAL,
        text="Payload that shards sent to workers.",
        is_total=True,
        prometheus=_payload("down"),
        short=Short("sent"),
    ),
    Metric(
        name="comm/dense_bytes",
        unit="bytes",
        combine=Combine.TOTAL,
        text="What the payload of both directions would have been uncompressed.",
        is_total=True,
        is_told=False,
    ),
    Metric(
        name="comm/compression",
        unit="ratio",
        combine=Combine.JOB,
        text="Dense bytes over bytes sent.",
        prometheus=Prometheus("raysync_compression_ratio"),
    ),
    Metric(
        name="train/samples_per_s",
        unit="samples/s",
        combine=Combine.JOB,
        text="Training samples per second.",
        prometheus=Prometheus("raysync_samples_per_second"),
        short=Short(form="{:,.0f} samples/s"),
    ),
    Metric(name="train/samples", unit="samples", combine=Combine.SUM, text="Training samples of a step."),
    Metric(
        name="sync/rounds",
        unit="rounds",
        combine=Combine.JOB,
        text="Synchronisations.",
        is_total=True,
        prometheus=Prometheus("raysync_sync_rounds", of_all="Synchronisations of all jobs there ever were."),
    ),
    Metric(
        name="sync/grad_delta",
        combine=Combine.JOB,
        text="What SelSync compares with its threshold.",
        prometheus=Prometheus("raysync_grad_delta"),
    ),
    Metric(
        name="sync/delta",
        combine=Combine.JOB,
        text="SelSync's threshold, given or found.",
        prometheus=Prometheus("raysync_delta"),
    ),
    Metric(
        name="staleness/max",
        unit="steps",
        combine=Combine.JOB,
        text="Largest staleness of a read, in steps.",
        prometheus=Prometheus("raysync_staleness_max_steps"),
    ),
    Metric(
        name="staleness/mean",
        unit="steps",
        combine=Combine.JOB,
        text="Mean staleness of reads, in steps.",
        prometheus=Prometheus("raysync_staleness_mean_steps"),
    ),
    Metric(
        name="staleness/last",
        unit="steps",
        combine=Combine.JOB,
        text="Staleness of the last read of the worker that tells it, in steps.",
    ),
    Metric(
        name="feedback/residual_norm",
        combine=Combine.NORM,
        text="Norm of what error feedback holds back.",
        prometheus=Prometheus("raysync_residual_norm"),
    ),
    Metric(
        name="feedback/lost_norm",
        combine=Combine.JOB,
        text="Norm of the residuals that were lost with workers that died.",
    ),
    Metric(
        name="pipeline/activation_bytes",
        unit="bytes",
        combine=Combine.TOTAL,
        text="Activations and their gradients that stages sent each other.",
        is_total=True,
        by_stage=True,
        prometheus=Prometheus("raysync_activation_bytes", of_all="Activations of all jobs there ever were."),
    ),
    Metric(
        name="pipeline/delay",
        unit="steps",
        combine=Combine.MAX,
        text="Steps between the weights of a gradient and those it moved, on the stage where it is largest.",
        by_stage=True,
    ),
    Metric(
        name="pipeline/utilisation",
        unit="ratio",
        combine=Combine.MEAN,
        text="Share of the time in which a stage computed.",
        by_stage=True,
    ),
    Metric(
        name="pipeline/bubble",
        unit="ratio",
        combine=Combine.MEAN,
        text="Share of the time in which a stage waited for what its neighbours were to send.",
        by_stage=True,
    ),
    Metric(
        name="pipeline/memory_bytes",
        unit="bytes",
        combine=Combine.MAX,
        text="What a stage holds in memory for weights, moments, stash, averaging and microbatches in flight, on the \
stage where it is most.",
        by_stage=True,
    ),
    Metric(
        name="pipeline/dropped",
        unit="microbatches",
        combine=Combine.TOTAL,
        text="Microbatches in flight that were given up when their pipeline broke.",
    ),
    Metric(
        name="pipeline/stash_bytes",
        unit="bytes",
        combine=Combine.TOTAL,
        text="Memory of older weights that microbatches in flight still need.",
        by_stage=True,
    ),
    Metric(
        name="sparse/landed",
        unit="means",
        combine=Combine.TOTAL,
        text="Means of parts that replicas have taken in.",
    ),
    Metric(
        name="sparse/dropped",
        unit="means",
        combine=Combine.TOTAL,
        text="Means of parts that came back too late to be used, or whose part was not sent.",
    ),
    Metric(
        name="sparse/delay",
        unit="steps",
        combine=Combine.MEAN,
        text="Steps between sending a part and the landing of its mean, on average.",
    ),
    Metric(name="time/compute_s", unit="s", combine=Combine.MEAN, text="Time a step's gradient took to compute."),
    Metric(name="time/encode_s", unit="s", combine=Combine.MEAN, text="Time to encode and send pushes."),
    Metric(name="time/sync_s", unit="s", combine=Combine.MEAN, text="Time from the pushes to the end of the round."),
    Metric(name="sync/wait_s", unit="s", combine=Combine.MEAN, text="Time a worker waited for decisions."),
)

TOLD = tuple(metric for metric in METRICS if metric.is_told)
"""Those that events carry."""


def metrics_of(stages: int) -> tuple[Metric, ...]:
    """Return all metrics of a job with so many stages."""
    if stages == 1:
        return METRICS
    return (*METRICS, *(metric.at_stage(stage) for metric in METRICS if metric.by_stage for stage in range(stages)))


def is_evaluation(name: str) -> bool:
    """Return whether a metric is an evaluation; a task may measure some of its own."""
    return name.startswith(_EVAL)
