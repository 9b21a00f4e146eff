/** The charts of a job, in the order in which people look at them; a new one is a function here and a line in `CHARTS`. */

import { Heat } from "../charts/heat.js";
import { paintTurns } from "../charts/marks.js";
import { Plot } from "../charts/plot.js";
import { Signal } from "../charts/signal.js";
import { aligned } from "../data/aligned.js";
import { WINDOW, rates } from "../data/rates.js";
import { percent, seconds, short, size } from "../format.js";
import { html } from "../lib.js";

const marked = (data, view) => (plot) => paintTurns(plot, data.turns, (event) => data.place(view.kind.value, event));
const plain = (data, view, names) => (range) => aligned(names.map((name) => data.of(name)), view.kind.value, range);

function Loss({ data, view }) {
  const names = ["train/loss", ...data.evaluations().filter((name) => name === "eval/loss")];
  return html`<${Plot} id="chart-loss" title="Loss" lines=${names.map((name) => ({ label: name }))} data=${plain(data, view, names)}
    view=${view} version=${data.version} marks=${marked(data, view)} />`;
}

function Evaluation({ data, view }) {
  const names = data.evaluations().filter((name) => name !== "eval/loss");
  if (!names.length) return null;
  const isShare = names.every((name) => name === "eval/accuracy");
  return html`<${Plot} id="chart-accuracy" title=${isShare ? "Accuracy" : "Evaluation"} lines=${names.map((name, n) => ({ label: name, colour: n + 2, dots: true }))} data=${plain(data, view, names)}
    format=${isShare ? percent : short} bounds=${isShare ? [0, 1] : undefined} view=${view} version=${data.version} marks=${marked(data, view)} />`;
}

function Bytes({ data, view }) {
  if (!data.has("comm/bytes_up")) return null;
  const lines = [{ label: "up", width: 1.3 }, { label: "down", width: 1.3, colour: 2 }, { label: "dense, both ways", dash: [6, 4], colour: 1, width: 1.3 }];
  const list = () => [rates(data, "comm/bytes_up"), rates(data, "comm/bytes_down"), rates(data, "comm/compression")];
  return html`<${Plot} id="chart-bytes" title="Bytes per step" note="Sent up to the shards and down to the workers, against the same uncompressed; means of ${WINDOW} steps, logarithmic." isLog=${true}
    lines=${lines} data=${(range) => aligned(list(), view.kind.value, range)} format=${size} view=${view} version=${data.version} marks=${marked(data, view)} />`;
}

function Lag({ data, view }) {
  const isStale = data.byWorker("staleness/last").length > 0;
  const name = isStale ? "staleness/last" : "sync/grad_delta";
  if (!data.byWorker(name).length) return null;
  const words = isStale
    ? { title: "Staleness by worker", note: "How many steps old the model is that a worker reads." }
    : { title: "Who calls for synchronisation", note: "The signal of each worker; all of them read the same model, so none is stale." };
  return html`<${Heat} id="chart-heat" ...${words} rows=${() => data.byWorker(name)} view=${view} version=${data.version} />`;
}

/** So many workers have a line each; of more one line stands for all. */
const MANY = 16;
const PARTS = [["time/compute_s", "compute"], ["time/encode_s", "encode"], ["time/sync_s", "send and receive"], ["sync/wait_s", "wait for decisions"]];

function Time({ data, view }) {
  const parts = PARTS.filter(([name]) => data.has(name));
  if (!parts.length) return null;
  const stacked = (range) => {
    const [xs, ...columns] = aligned(parts.map(([name]) => data.of(name)), view.kind.value, range);
    const held = columns.map(() => 0);
    const sums = columns.map(() => new Array(xs.length));
    for (let i = 0; i < xs.length; i++) {
      let sum = 0;
      columns.forEach((column, n) => {
        if (column[i] !== undefined) held[n] = column[i];
        sums[n][i] = sum += held[n];
      });
    }
    return [xs, ...sums.reverse()];
  };
  const lines = parts.map(([, label], n) => ({ label, fill: true, width: 1, colour: n })).reverse();
  return html`<${Plot} id="chart-time" title="Where a step's time goes" note="Stacked, a mean over the workers." lines=${lines} data=${stacked} canLog=${false} isStacked=${true} format=${seconds} values=${() => [0]}
    view=${view} version=${data.version} marks=${marked(data, view)} />`;
}

function Residual({ data, view }) {
  const all = data.byWorker("feedback/residual_norm");
  const workers = all.length > MANY ? [] : all;
  if (!workers.length && !data.of("feedback/residual_norm").max) return null;
  const list = () => (workers.length ? data.byWorker("feedback/residual_norm").slice(0, workers.length) : [data.of("feedback/residual_norm")]);
  if (!list().some((one) => one.max > 0)) return null;
  return html`<${Plot} id="chart-residual" title="Residual norm" note="What error feedback holds back for later." lines=${list().map((one) => ({ label: one.worker === null ? "all workers" : `worker ${one.worker}`, colour: one.worker ?? 3 }))}
    data=${(range) => aligned(list(), view.kind.value, range)} view=${view} version=${data.version} marks=${marked(data, view)} />`;
}

function Speed({ data, view }) {
  if (!data.has("train/samples_per_s")) return null;
  return html`<${Plot} id="chart-speed" title="Samples per second" lines=${[{ label: "all workers", colour: 6 }]} data=${plain(data, view, ["train/samples_per_s"])} values=${() => [0]}
    view=${view} version=${data.version} marks=${marked(data, view)} />`;
}

function Threshold({ data, view }) {
  return data.has("sync/grad_delta") ? html`<${Signal} data=${data} view=${view} />` : null;
}

const CHARTS = [Loss, Evaluation, Speed, Threshold, Bytes, Time, Residual, Lag];

export function Charts({ data, view }) {
  return html`<div class="charts">${CHARTS.map((Chart) => html`<${Chart} key=${Chart.name} data=${data} view=${view} />`)}</div>`;
}
