/** A pipeline job as a mesh: stages by replicas with what each does now, and the schedule as it ran. */

import { get } from "../api.js";
import { View } from "../charts/axes.js";
import { Plot } from "../charts/plot.js";
import { Schedule } from "../charts/schedule.js";
import { aligned } from "../data/aligned.js";
import { JobData } from "../data/job.js";
import { percent, seconds, short, size } from "../format.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { Link } from "../parts/link.js";
import { Progress, State } from "../parts/state.js";
import { Verbs } from "../parts/steering.js";
import { Toolbar } from "../parts/toolbar.js";
import { link } from "../router.js";

const BY_STAGE = ["pipeline/utilisation", "pipeline/delay", "pipeline/bubble", "pipeline/memory_bytes", "pipeline/activation_bytes", "pipeline/stash_bytes"];
const LOOK_MS = 3000;
const LATELY = 20;

export function Mesh({ id }) {
  const data = useMemo(() => new JobData(id, { workerNames: [] }), [id]);
  const view = useMemo(() => new View(), [id]);
  const [trace, setTrace] = useState(null);
  useEffect(() => {
    data.open();
    document.raysync = { ...document.raysync, job: data };
    const look = async () => {
      if (document.hidden) return;
      const [job, found] = await Promise.allSettled([get(`/jobs/${id}`), get(`/jobs/${id}/trace`)]);
      if (job.value && data.job.peek()) data.job.value = job.value;
      if (found.value) setTrace(found.value);
    };
    look();
    const timer = setInterval(look, LOOK_MS);
    return () => {
      clearInterval(timer);
      data.close();
    };
  }, [id]);
  data.version.value; // each value is on the grid
  const job = data.job.value;
  if (!job) return html`<main><h1>${id}</h1><p class=${data.problem.value ? "problem" : "loading"} role="status">${data.problem.value || "Loading …"}</p></main>`;
  const { stages = 1, workers = 1 } = job.spec.scale;
  if (stages < 2) return html`<main><h1>${id}</h1><p class="nothing">This job has one stage: <a href=${link("jobs", id)}>its charts</a> show all of it.</p></main>`;
  return html`<main class="job">
    <header class="top"><div><h1>${id}</h1><p class="under">${job.spec.schedule?.kind ?? "pipeline"} · ${stages} stages × ${workers} replicas · ${job.strategy}</p></div>
      <${State} state=${job.state} reason=${job.reason} /><${Progress} job=${job} /><${Link} state=${data.link.value.state} />
      <span class="grow"></span><a class="button" href=${link("jobs", id)}>Charts</a><${Verbs} job=${job} /></header>
    <section class="card"><h2>Stages and replicas</h2><${Grid} job=${job} data=${data} trace=${trace} stages=${stages} replicas=${workers} /></section>
    <section class="card"><h2>The schedule as it ran</h2>${trace?.spans.length ? html`<${Schedule} spans=${trace.spans} />` : html`<p class="nothing">${job.is_terminal ? "No trace of this job was kept." : "The stages tell what they did when they end."}</p>`}</section>
    <${Toolbar} view=${view} all=${() => [0, Math.max(1, job.step)]} />
    <div class="charts"><${ByStage} data=${data} view=${view} stages=${stages} name="pipeline/utilisation" title="Utilisation by stage" format=${percent} />
      <${ByStage} data=${data} view=${view} stages=${stages} name="pipeline/delay" title="Delay by stage" note="Steps between the weights of a gradient and those it moves." />
      <${ByStage} data=${data} view=${view} stages=${stages} name="pipeline/memory_bytes" title="Memory by stage" format=${size} />
      <${Plot} id="mesh-loss" title="Loss" lines=${[{ label: "train/loss" }]} data=${(range) => aligned([data.of("train/loss")], view.kind.value, range)} view=${view} version=${data.version} /></div>
  </main>`;
}

function ByStage({ data, view, stages, name, title, note, format = short }) {
  const list = Array.from({ length: stages }, (_, stage) => data.of(`${name}/${stage}`));
  if (!list.some((one) => one.length)) return null;
  return html`<${Plot} id="mesh-${name.replace("/", "-")}" title=${title} note=${note} lines=${list.map((_, stage) => ({ label: `stage ${stage}` }))}
    data=${(range) => aligned(list, view.kind.value, range)} format=${format} values=${() => [0]} view=${view} version=${data.version} />`;
}

/** A cell for every stage of every replica, as full as it is busy; arrows are what they send each other. */
function Grid({ job, data, trace, stages, replicas }) {
  const count = Math.max(replicas, 1 + Math.max(-1, ...(job.actors ?? []).filter((one) => one.role === "stage").map((one) => one.index)));
  const last = (name, stage) => data.series.get(`${name}/${stage}`)?.last ?? null;
  const lately = (name, stage) => mean(data.series.get(`${name}/${stage}`));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Mesh"><table class="mesh">
    <thead><tr><th scope="col">Replica</th>${range(stages).map((stage) => html`<th scope="col">stage ${stage}<small>${last("pipeline/delay", stage) === null ? "" : `delay ${short(last("pipeline/delay", stage))}`}</small></th>`)}</tr></thead>
    <tbody>${range(count).map((replica) => html`<tr><th scope="row">${replica}</th>${range(stages).map((stage) => html`<td><${Cell} actor=${actorAt(job, stage, replica)} busy=${busyOf(job, trace, stage, replica) ?? lately("pipeline/utilisation", stage)} memory=${last("pipeline/memory_bytes", stage)} stage=${stage} replica=${replica} isLast=${stage === stages - 1} /></td>`)}</tr>`)}</tbody>
    <tfoot><tr><th scope="row">all</th>${range(stages).map((stage) => html`<td>busy ${percent(lately("pipeline/utilisation", stage))}, waits ${percent(lately("pipeline/bubble", stage))}<br />sent ${size(last("pipeline/activation_bytes", stage))}</td>`)}</tr></tfoot>
  </table></div>`;
}

function Cell({ actor, busy, memory, stage, replica, isLast }) {
  const life = actor?.life ?? "unknown";
  const title = actor ? `${actor.name} on ${actor.node}, pid ${actor.pid}` : `stage ${stage} of replica ${replica}`;
  return html`<div class="cell ${life}" title=${title}>
    <span class="fill" style=${{ height: `${Math.round(100 * Math.min(1, busy ?? 0))}%` }}></span>
    <b>${percent(busy)}</b><small>${actor?.compute_s ? `${seconds(actor.compute_s)} a step` : memory ? size(memory) : life}</small>
    ${!isLast && html`<i class="arrow" aria-hidden="true">⇄</i>`}</div>`;
}

function actorAt(job, stage, replica) {
  return (job.actors ?? []).find((one) => one.stage === stage && one.index === replica && one.role === "stage");
}

function busyOf(job, trace, stage, replica) {
  const actor = actorAt(job, stage, replica);
  if (!job.is_terminal && actor?.busy_ratio !== null && actor?.busy_ratio !== undefined) return actor.busy_ratio;
  return trace?.utilisation?.find((one) => one.stage === stage && one.replica === replica)?.ratio ?? null;
}

/** The mean of a series' last values: a stage's share of one step says little. */
function mean(series) {
  const values = series?.value.subarray(Math.max(0, series.length - LATELY), series.length);
  return values?.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

function range(count) {
  return Array.from({ length: count }, (_, n) => n);
}
