/** The figures of a job that people look at first. */

import { percent, seconds, short, size, times } from "../format.js";
import { html } from "../lib.js";
import { summaryOf } from "../data/session.js";

/** `data` is read for best values; the rest is in the job's summary. */
export function Tiles({ job, data }) {
  const metrics = job.metrics;
  const sent = (metrics["comm/bytes_up"] ?? 0) + (metrics["comm/bytes_down"] ?? 0);
  const accuracy = data.series.get("eval/accuracy");
  const loss = data.series.get("train/loss");
  const tiles = [
    ["Loss", "train/loss", short(metrics["train/loss"]), loss?.length ? `lowest ${short(loss.min)}` : ""],
    ["Accuracy", "eval/accuracy", percent(metrics["eval/accuracy"]), accuracy?.length ? `best ${percent(accuracy.max)}` : ""],
    ["Sent", "comm/bytes_up", size(sent), `${size(metrics["comm/bytes_up"])} up, ${size(metrics["comm/bytes_down"])} down`],
    ["Compression", "comm/compression", times(metrics["comm/compression"]), "against dense"],
    ["LSSR", "sync/lssr", percent(metrics["sync/lssr"]), "steps without synchronisation"],
    ["Staleness", "staleness/mean", short(metrics["staleness/mean"]), `at most ${short(metrics["staleness/max"])} steps`],
    ["Speed", "train/samples_per_s", short(metrics["train/samples_per_s"]), "samples per second"],
    job.is_terminal ? ["Took", "", took(job), "from its first step to its end"] : ["Workers", "", String(job.workers), `for ${took(job)}`],
  ];
  const known = tiles.filter(([, name]) => name === "" || (metrics[name] !== undefined && metrics[name] !== null));
  return html`<dl class="tiles">${known.map(([word, name, value, under]) => html`<div class="tile card" title=${summaryOf(name)}><dt>${word}</dt><dd><b>${value}</b><span>${under}</span></dd></div>`)}</dl>`;
}

function took(job) {
  if (!job.started_at) return "–";
  const end = job.ended_at ? Date.parse(job.ended_at) : Date.now();
  return seconds((end - Date.parse(job.started_at)) / 1000);
}
