/** Jobs over each other on common axes; the address keeps which, of what, and against what. */

import { get } from "../api.js";
import { queryOf, viewOf } from "../charts/axes.js";
import { Plot } from "../charts/plot.js";
import { aligned } from "../data/aligned.js";
import { differences } from "../data/differences.js";
import { Overlay } from "../data/overlay.js";
import { figure, percent, short, size, times } from "../format.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { Link } from "../parts/link.js";
import { complain, say } from "../parts/notices.js";
import { State } from "../parts/state.js";
import { Toolbar } from "../parts/toolbar.js";
import { link, note, noteAll, route } from "../router.js";

const DEFAULT = ["train/loss", "eval/accuracy"];
const OFFERED = [...DEFAULT, "eval/loss", "sync/lssr", "comm/compression", "train/samples_per_s", "feedback/residual_norm", "sync/delta", "staleness/mean", "pipeline/bubble"];

export function Compare() {
  const query = route.value.query;
  const ids = (query.get("jobs") ?? "").split(",").filter(Boolean);
  const names = (query.get("metrics") ?? "").split(",").filter(Boolean);
  const view = useMemo(() => viewOf(query), []);
  const choose = (chosen) => note("jobs", chosen.join(","));
  const keep = () => noteAll(queryOf(view));
  const copy = () => navigator.clipboard.writeText(location.href).then(() => say("The link is copied; it holds the selection, not your token."), complain);
  return html`<main>
    <header class="top"><h1>Compare</h1><span class="grow"></span><button onClick=${copy} disabled=${!ids.length}>Copy link</button></header>
    <${Picker} ids=${ids} choose=${choose} />
    ${ids.length > 0 && html`<${Shown} key=${ids.join(",")} ids=${ids} names=${names.length ? names : DEFAULT} view=${view} keep=${keep} choose=${choose} />`}
    ${!ids.length && html`<p class="nothing">Choose jobs to lay over each other.</p>`}
  </main>`;
}

function Picker({ ids, choose }) {
  const [offered, setOffered] = useState([]);
  const [text, setText] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => get("/jobs", { limit: 50, name: text }).then((page) => setOffered(page.items), complain), 150);
    return () => clearTimeout(timer);
  }, [text]);
  const add = (event) => {
    event.preventDefault();
    const found = offered.find((job) => job.id === text) ?? offered.find((job) => !ids.includes(job.id));
    if (found && !ids.includes(found.id)) choose([...ids, found.id]);
    setText("");
  };
  return html`<form class="filters" onSubmit=${add}>
    <label class="search wide"><span class="hidden">Job to add</span><input list="known-jobs" placeholder="Add a job by name" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <datalist id="known-jobs">${offered.filter((job) => !ids.includes(job.id)).map((job) => html`<option value=${job.id}>${job.strategy}, ${job.state.toLowerCase()}</option>`)}</datalist>
    <button>Add</button>
  </form>`;
}

function Shown({ ids, names, view, keep, choose }) {
  const data = useMemo(() => new Overlay(ids, names), []);
  useEffect(() => {
    data.open(names);
    return () => data.close();
  }, [names.join(",")]);
  const jobs = data.jobs.value;
  const toggle = (name) => {
    const next = names.includes(name) ? names.filter((one) => one !== name) : [...names, name];
    note("metrics", next.join(",") === DEFAULT.join(",") ? "" : next.join(","));
  };
  const lines = ids.map((id) => ({ label: id }));
  return html`<div class="chips" role="group" aria-label="Metrics">${OFFERED.map((name) => html`<button class="chip" aria-pressed=${names.includes(name)} onClick=${() => toggle(name)}>${name}</button>`)}</div>
    ${data.problem.value && html`<p class="problem" role="alert">${data.problem.value}</p>`}
    <${Toolbar} view=${view} all=${() => data.whole(view.kind.value)} onTurn=${keep} />
    <div class="charts">${names.map((name) => html`<${Plot} key=${name} id="compare-${name.replaceAll("/", "-")}" title=${name} lines=${lines.map((line) => ({ ...line, dots: name.startsWith("eval/") ? true : undefined }))}
      data=${(range) => aligned(ids.map((id) => data.of(id, name)), view.kind.value, range)} format=${name === "eval/accuracy" ? percent : short} view=${view} version=${data.version} height=${260} />`)}</div>
    <${Figures} ids=${ids} jobs=${jobs} state=${data.link.value} choose=${choose} />
    <${Differences} ids=${ids} jobs=${jobs} />`;
}

function Figures({ ids, jobs, state, choose }) {
  const rows = [
    ["State", (job) => html`<${State} state=${job.state} reason=${job.reason} />`],
    ["Steps", (job) => `${short(job.step)} of ${short(job.steps)}`],
    ["Loss", (job) => short(job.metrics["train/loss"])],
    ["Accuracy", (job) => figure("eval/accuracy", job.metrics["eval/accuracy"])],
    ["Sent", (job) => size((job.metrics["comm/bytes_up"] ?? 0) + (job.metrics["comm/bytes_down"] ?? 0))],
    ["Compression", (job) => times(job.metrics["comm/compression"])],
    ["LSSR", (job) => percent(job.metrics["sync/lssr"])],
    ["Samples per second", (job) => short(job.metrics["train/samples_per_s"])],
  ];
  return html`<section class="card"><h2>Figures <${Link} state=${state} /></h2><div class="scroll" tabindex="0" role="region" aria-label="Figures"><table>
    <thead><tr><th scope="col">Now</th>${ids.map((id, n) => html`<th scope="col" key=${id}><i class="swatch s${n % 8}"></i><a href=${link("jobs", id)}>${id}</a>
      <button class="small quiet" aria-label="Take ${id} out" onClick=${() => choose(ids.filter((one) => one !== id))}>×</button></th>`)}</tr></thead>
    <tbody>${rows.map(([words, show]) => html`<tr><th scope="row">${words}</th>${ids.map((id) => html`<td>${jobs[id] ? show(jobs[id]) : "–"}</td>`)}</tr>`)}</tbody>
  </table></div></section>`;
}

function Differences({ ids, jobs }) {
  const rows = differences(ids.map((id) => jobs[id]?.spec));
  return html`<section class="card"><h2>Differences in specification</h2>
    ${ids.length < 2 ? html`<p class="nothing">Add a second job to see what they differ in.</p>` : !rows.length ? html`<p class="nothing">Their specifications are the same.</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label="Differences"><table class="differences">
      <thead><tr><th scope="col">Field</th>${ids.map((id, n) => html`<th scope="col" key=${id}><i class="swatch s${n % 8}"></i>${id}</th>`)}</tr></thead>
      <tbody>${rows.map(({ path, values }) => html`<tr><th scope="row"><code>${path}</code></th>${values.map((value) => html`<td>${value === undefined ? html`<span class="note">not there</span>` : html`<code>${JSON.stringify(value)}</code>`}</td>`)}</tr>`)}</tbody>
    </table></div>`}</section>`;
}
