/** What an operator can do with a job: hold it, let it go on, end it, give it more or fewer workers. */

import { call, post } from "../api.js";
import { canSteer } from "../data/session.js";
import { html, useState } from "../lib.js";
import { complain, say } from "./notices.js";

const DONE = { pause: "will pause at its next decision", resume: "goes on", stop: "is ending" };

export async function ask(job, verb) {
  if (verb === "stop" && !confirm(`End ${job.id}? What it has learned stays in its folder.`)) return;
  try {
    await post(`/jobs/${job.id}/${verb}`, verb === "stop" ? { reason: "stopped on the page" } : undefined);
    say(`${job.id} ${DONE[verb]}.`);
  } catch (error) {
    complain(error);
  }
}

/** The buttons of a job; nothing for those who may only look. */
export function Verbs({ job, small = false }) {
  if (!canSteer.value || job.is_terminal) return null;
  const held = job.state === "PAUSED";
  const shape = small ? "small" : "";
  return html`<span class="verbs">
    <button class=${shape} onClick=${() => ask(job, held ? "resume" : "pause")} aria-label="${held ? "Resume" : "Pause"} ${job.id}">${held ? "Resume" : "Pause"}</button>
    <button class="${shape} danger" onClick=${() => ask(job, "stop")} aria-label="Stop ${job.id}">Stop</button>
  </span>`;
}

export function Workers({ job }) {
  const scale = job.spec?.scale ?? {};
  const [low, high] = [scale.min_workers ?? 1, scale.max_workers ?? scale.workers ?? job.workers];
  const [count, setCount] = useState(null);
  if (!canSteer.value || job.is_terminal || low >= high) return null;
  const shown = count ?? job.knobs?.workers ?? job.workers;
  const send = async (event) => {
    event.preventDefault();
    try {
      await call("PUT", `/jobs/${job.id}/workers`, { body: { count: Number(shown) } });
      say(`${job.id} is to have ${shown} workers.`);
    } catch (error) {
      complain(error);
    }
  };
  return html`<form class="inline" onSubmit=${send}>
    <label>Workers <input type="number" min=${low} max=${high} value=${shown} onInput=${(event) => setCount(event.target.value)} /></label>
    <button class="small">Scale</button><span class="note">${low} to ${high}</span>
  </form>`;
}
