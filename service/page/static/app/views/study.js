/** One search: its front with three picks, each a job that can be submitted as it is; how it grew; every trial and why it ended. */

import { get, post } from "../api.js";
import { Front, named } from "../charts/front.js";
import { View } from "../charts/axes.js";
import { Plot } from "../charts/plot.js";
import { canSteer } from "../data/session.js";
import { follow } from "../data/stream.js";
import { short, size } from "../format.js";
import { html, signal, useEffect, useMemo } from "../lib.js";
import { Link, spoken } from "../parts/link.js";
import { complain, say } from "../parts/notices.js";
import { State } from "../parts/state.js";
import { go, link } from "../router.js";
import { begin } from "./submit.js";

const GATHER_MS = 300;

export function Study({ id }) {
  const data = useMemo(() => ({ study: signal(null), trials: signal([]), link: signal("opening"), problem: signal(""), version: signal(0) }), [id]);
  useEffect(() => opened(id, data), [id]);
  const study = data.study.value;
  if (!study) return html`<main><h1>${id}</h1><p class=${data.problem.value ? "problem" : "loading"} role="status">${data.problem.value || "Loading …"}</p></main>`;
  const trials = data.trials.value;
  const look = (trial) => trial.jobs.length && go(link("jobs", trial.jobs[0]));
  const stop = () => post(`/studies/${id}/stop`).then(() => say(`${id} is ending.`), complain);
  const jobs = trials.flatMap((trial) => trial.jobs.slice(0, 1));
  return html`<main>
    <header class="top"><h1>${id}</h1><${State} state=${study.state} /><span class="progress"><progress max=${study.trials} value=${study.over} aria-label="Trials that are over"></progress><span>${study.over} of ${study.trials} trials</span></span><${Link} state=${data.link.value} />
      <span class="grow"></span><a class="button" href="#/compare?jobs=${jobs.slice(0, 8).join(",")}&x=bytes">Compare its jobs</a>${canSteer.value && !study.is_terminal && html`<button class="danger" onClick=${stop}>Stop</button>`}</header>
    <p class="sentence">${study.sentence}</p>
    <div class="halves study">
      <section class="card"><h2>Front</h2><${Front} study=${study} trials=${trials} onPick=${look} /></section>
      <section class="picks" aria-label="Picks">${Object.entries(study.picks).map(([name, pick]) => html`<${Pick} key=${name} name=${name} pick=${pick} />`)}${!Object.keys(study.picks).length && html`<p class="nothing card">The smallest, the knee and the best of the front will stand here.</p>`}</section>
    </div>
    <${Volume} study=${study} data=${data} />
    <section class="card"><h2>Trials</h2><${Trials} study=${study} trials=${trials} /></section>
  </main>`;
}

function opened(id, data) {
  let timer = 0;
  const load = async () => {
    try {
      const [study, trials] = await Promise.all([get(`/studies/${id}`), get(`/studies/${id}/trials`)]);
      [data.study.value, data.trials.value, data.problem.value] = [study, trials, ""];
      data.version.value += 1;
    } catch (error) {
      data.problem.value = error.message;
    }
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(load, GATHER_MS);
  };
  load();
  const close = follow("/stream", { studies: id, kinds: "none" }, {
    onMessage: (name) => (name === "trials" || name === "studies" || name === "end") && soon(),
    onLink: spoken((state) => {
      data.link.value = state;
      if (state === "back") soon();
    }),
  });
  return () => {
    clearTimeout(timer);
    close();
  };
}

function Pick({ name, pick }) {
  const text = JSON.stringify(pick.spec, null, 2);
  const copy = () => navigator.clipboard.writeText(text).then(() => say(`The ${name} specification is copied.`), complain);
  return html`<article class="card pick"><h3>${name}<span class="note"> trial ${pick.trial}</span></h3><p>${pick.why}</p>
    <p class="verbs">${canSteer.value && html`<button class="primary" onClick=${() => begin(pick.spec)} aria-label="Submit the ${name} pick">Submit …</button>`}<button onClick=${copy} aria-label="Copy the ${name} pick">Copy</button></p>
    <details><summary>Specification</summary><pre tabindex="0">${text}</pre></details></article>`;
}

function Volume({ study, data }) {
  const view = useMemo(() => new View(), []);
  const values = () => [study.hypervolume.map((_, n) => n), study.hypervolume];
  return html`<${Plot} id="chart-volume" title="How much the front covers, trial by trial" note="Hypervolume: what is dominated up to the costliest trial and the floor, costs by their logarithm." lines=${[{ label: "hypervolume", stepped: true, colour: 2, dots: true }]} data=${values} canLog=${false} view=${view} version=${data.version} height=${180} values=${() => [0]} />`;
}

function Trials({ study, trials }) {
  const picks = named(study.picks);
  const paths = Object.keys(study.spec.space);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Trials"><table class="trials"><thead><tr><th scope="col">Trial</th><th scope="col">State</th>${paths.map((path) => html`<th scope="col"><code>${path}</code></th>`)}
      <th scope="col" class="number">${study.spec.floor.metric}</th><th scope="col" class="number">Cost</th><th scope="col" class="number">Sent</th><th scope="col">Why</th></tr></thead>
    <tbody>${trials.map((trial) => html`<tr key=${trial.number} class=${study.front.includes(trial.number) ? "on-front" : ""}><th scope="row">${trial.jobs.length ? html`<a href=${link("jobs", trial.jobs[0])}>${trial.number}</a>` : trial.number} <span class="note">${trial.kind}</span> ${picks[trial.number] && html`<span class="label">${picks[trial.number]}</span>`}</th>
      <td><${State} state=${trial.state} /></td>${paths.map((path) => html`<td>${show(trial.point[path])}</td>`)}<td class="number">${short(trial.quality, 4)}</td><td class="number">${study.spec.objective?.minimise === "wall_s" ? short(trial.cost) : size(trial.cost)}</td><td class="number">${size(trial.total_bytes)}</td><td>${trial.reason}</td></tr>`)}</tbody></table></div>`;
}

function show(value) {
  return value === undefined ? html`<span class="note">as given</span>` : typeof value === "number" ? short(value) : String(value);
}
