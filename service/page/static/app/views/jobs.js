/** All jobs, newest first: what they are, how far they are, how well they learn; every row is live. */

import { GROUPS, JobList } from "../data/jobs.js";
import { canSteer } from "../data/session.js";
import { ago, figure, percent, size, times } from "../format.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { Spark } from "../charts/spark.js";
import { Link } from "../parts/link.js";
import { Labels, Progress, State } from "../parts/state.js";
import { Verbs } from "../parts/steering.js";
import { link, note, route } from "../router.js";

export function Jobs() {
  const list = useMemo(() => new JobList(), []);
  const query = route.value.query;
  const [picked, setPicked] = useState([]);
  const filter = { group: query.get("show") ?? "all", text: query.get("q") ?? "", label: query.get("label") ?? "" };
  useEffect(() => {
    list.filter = filter;
    list.open();
    return () => list.close();
  }, []);
  const narrow = (name, value) => {
    note(name === "group" ? "show" : name === "text" ? "q" : name, value === "all" ? "" : value);
    list.narrow({ [name]: value });
  };
  const pick = (id) => setPicked(picked.includes(id) ? picked.filter((one) => one !== id) : [...picked, id]);
  const jobs = list.jobs.value;
  return html`<main>
    <header class="top">
      <h1>Jobs</h1>
      <${Link} state=${list.link.value} />
      <span class="grow"></span>
      <a class="button" href="#/latest">Always the latest</a>
      <a class="button ${picked.length ? "" : "off"}" href=${picked.length ? `#/compare?jobs=${picked.join(",")}` : undefined} aria-disabled=${!picked.length}>Compare${picked.length ? ` ${picked.length}` : ""}</a>
      ${canSteer.value && html`<a class="button primary" href="#/submit">New job</a>`}
    </header>
    <${Filters} filter=${filter} narrow=${narrow} />
    ${list.problem.value && html`<p class="problem" role="alert">${list.problem.value}</p>`}
    ${list.isLoaded.value && !jobs.length && html`<${Nothing} filter=${filter} />`}
    ${jobs.length > 0 && html`<div class="scroll card flush" tabindex="0" role="region" aria-label="Jobs">
      <table class="jobs">
        <thead><tr>
          <th scope="col"><span class="hidden">Compare</span></th><th scope="col">Job</th><th scope="col">State</th><th scope="col">Progress</th>
          <th scope="col">Learning</th><th scope="col" class="number">Sent</th><th scope="col" class="number"><abbr title="Share of steps without synchronisation">LSSR</abbr></th>
          <th scope="col" class="number">Compression</th><th scope="col" class="number">Workers</th><th scope="col">Begun</th>
          ${canSteer.value && html`<th scope="col"><span class="hidden">Steer</span></th>`}
        </tr></thead>
        <tbody>${jobs.map((job) => html`<${Row} key=${job.id} job=${job} sparks=${list.sparks.value[job.id] ?? {}} isPicked=${picked.includes(job.id)} pick=${pick} onLabel=${(label) => narrow("label", label)} />`)}</tbody>
      </table>
    </div>`}
    ${list.cursor.value && html`<p class="more"><button onClick=${() => list.load(list.cursor.value)}>Older jobs</button></p>`}
  </main>`;
}

function Filters({ filter, narrow }) {
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <div class="choice" role="group" aria-label="Which jobs">
      ${Object.keys(GROUPS).map((group) => html`<button type="button" aria-pressed=${filter.group === group} onClick=${() => narrow("group", group)}>${group}</button>`)}
    </div>
    <label class="search"><span class="hidden">Search by name</span>
      <input type="search" placeholder="Search by name" value=${filter.text} onInput=${(event) => narrow("text", event.target.value.trim())} /></label>
    <label class="search"><span class="hidden">Label</span>
      <input type="search" placeholder="Label, such as team:vision" value=${filter.label} onInput=${(event) => narrow("label", event.target.value.trim())} /></label>
  </form>`;
}

function Nothing({ filter }) {
  const isNarrow = filter.group !== "all" || filter.text || filter.label;
  if (isNarrow) return html`<p class="nothing">No job fits this search.</p>`;
  return html`<section class="nothing">
    <p>No job yet.</p>
    ${canSteer.value ? html`<p><a class="button primary" href="#/submit">Start the first one</a></p>` : html`<p>An operator's token can start one.</p>`}
  </section>`;
}

function Row({ job, sparks, isPicked, pick, onLabel }) {
  const metrics = job.metrics;
  const isJudged = metrics["eval/accuracy"] !== undefined && metrics["eval/accuracy"] !== null;
  const shown = isJudged ? "eval/accuracy" : "train/loss";
  const word = isJudged ? "accuracy" : "loss";
  const sent = (metrics["comm/bytes_up"] ?? 0) + (metrics["comm/bytes_down"] ?? 0);
  return html`<tr data-job=${job.id}>
    <td><input type="checkbox" checked=${isPicked} onChange=${() => pick(job.id)} aria-label="Compare ${job.id}" /></td>
    <th scope="row"><a href=${link("jobs", job.id)}>${job.id}</a>
      <span class="under">${job.strategy} · ${job.owner} <${Labels} labels=${job.labels} onPick=${onLabel} /></span>${job.state === "FAILED" && html`<span class="under why" title=${job.reason}>${job.reason}</span>`}</th>
    <td><${State} state=${job.state} reason=${job.reason} /></td>
    <td><${Progress} job=${job} /></td>
    <td class="learning"><${Spark} values=${sparks[shown]} tone=${isJudged ? "s2" : "s0"} label="${word} so far" />
      <span>${metrics[shown] === undefined ? "–" : figure(shown, metrics[shown])} <small>${word}</small></span></td>
    <td class="number">${sent ? size(sent) : "–"}</td>
    <td class="number">${metrics["sync/lssr"] === undefined ? "–" : percent(metrics["sync/lssr"])}</td>
    <td class="number">${times(metrics["comm/compression"])}</td>
    <td class="number">${job.workers || "–"}</td>
    <td><time datetime=${job.created_at} title=${new Date(job.created_at).toLocaleString("en")}>${ago(job.created_at)}</time></td>
    ${canSteer.value && html`<td><${Verbs} job=${job} small=${true} /></td>`}
  </tr>`;
}
