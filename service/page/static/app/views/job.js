/** One job, live: its figures, its charts, its knobs, its processes, and what happened to it. */

import { get } from "../api.js";
import { queryOf, viewOf } from "../charts/axes.js";
import { JobData } from "../data/job.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { Actors } from "../parts/actors.js";
import { Files } from "../parts/files.js";
import { Knobs } from "../parts/knobs.js";
import { Link } from "../parts/link.js";
import { Log } from "../parts/log.js";
import { Labels, Progress, State } from "../parts/state.js";
import { Verbs, Workers } from "../parts/steering.js";
import { Tiles } from "../parts/tiles.js";
import { Toolbar } from "../parts/toolbar.js";
import { link, noteAll, route } from "../router.js";
import { Charts } from "./job_charts.js";

const LOOK_MS = 3000;

export function Job({ id }) {
  const data = useMemo(() => new JobData(id), [id]);
  const view = useMemo(() => viewOf(route.peek().query), [id]);
  const shape = useShape(data);
  useEffect(() => {
    data.open();
    document.raysync = { ...document.raysync, job: data }; // for tests and the curious
    return () => data.close();
  }, [data]);
  useLooks(data);
  const job = data.job.value;
  if (!job) return html`<main><h1>${id}</h1><p class=${data.problem.value ? "problem" : "loading"} role="status">${data.problem.value || "Loading …"}</p></main>`;
  const keep = () => noteAll(queryOf(view));
  const stages = job.spec?.scale?.stages ?? 1;
  return html`<main class="job" data-shape=${shape}>
    <header class="top">
      <div><h1>${id}</h1><p class="under">${job.strategy} on ${job.spec?.task?.kind ?? "?"} · ${job.owner} <${Labels} labels=${job.labels} /></p></div>
      <${State} state=${job.state} reason=${job.reason} /><${Progress} job=${job} /><${Link} state=${data.link.value.state} />
      <span class="grow"></span>
      ${stages > 1 && html`<a class="button" href=${link("mesh", id)}>Mesh</a>`}
      <a class="button" href="#/compare?jobs=${id}">Compare</a>
      <${Verbs} job=${job} />
    </header>
    ${data.problem.value && html`<p class="problem" role="alert">${data.problem.value}</p>`}
    <${Reason} job=${job} />
    <${Tiles} job=${job} data=${data} />
    <${Toolbar} view=${view} all=${() => whole(data, view)} onTurn=${keep} />
    <${Charts} data=${data} view=${view} />
    <div class="panes">
      <section class="card"><h2>Knobs</h2><${Knobs} data=${data} /><${Workers} job=${job} /><p class="note">Knob version ${job.knob_version}. ${data.lastReason ? `Last decision, step ${data.lastReason.step}: ${data.lastReason.reason}` : ""}</p></section>
      <section class="card"><h2>Events</h2><${Log} events=${data.log.value} /></section>
    </div>
    <section class="card"><h2>Actors</h2><${Actors} actors=${job.actors} /></section>
    <${Files} job=${job} />
    <details class="card"><summary>Specification</summary><pre tabindex="0">${JSON.stringify(job.spec, null, 1)}</pre></details>
  </main>`;
}

function Reason({ job }) {
  if (job.state === "RUNNING") return null;
  return html`<div class="reason ${job.state === "FAILED" ? "problem" : ""}"><p>${job.reason}</p>
    ${job.traceback && html`<details><summary>Traceback</summary><pre tabindex="0">${job.traceback}</pre></details>`}</div>`;
}

/** Draw the view anew only when there is another line or chart to draw: values are the charts' own business. */
function useShape(data) {
  const [shape, setShape] = useState("");
  useEffect(() => data.version.subscribe(() => {
    const found = [...data.series].filter(([, series]) => series.length).map(([name]) => name).sort().join(" ");
    setShape(`${found} ${data.turns.length}`);
  }), [data]);
  return shape;
}

/** Look at the whole job now and then: what its actors do is in no event. */
function useLooks(data) {
  useEffect(() => {
    const timer = setInterval(async () => {
      if (document.hidden || !data.job.value || (data.job.value.is_terminal && data.link.value.state === "ended")) return;
      try {
        const job = await get(`/jobs/${data.id}`);
        data.job.value = job;
      } catch {
        // the stream says that the service is away
      }
    }, LOOK_MS);
    return () => clearInterval(timer);
  }, [data]);
}

function whole(data, view) {
  const loss = data.of("train/loss");
  const xs = loss[view.kind.value];
  return loss.length ? [xs[0], xs[loss.length - 1]] : [0, 1];
}
