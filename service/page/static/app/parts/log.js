/** What happened to a job, with reasons and names, newest first. */

import { turned } from "../charts/marks.js";
import { seconds } from "../format.js";
import { html, useState } from "../lib.js";

const SHOWN = 60;
const WORDS = {
  state: ({ state, reason }) => `${state.toLowerCase()}: ${reason.split("\n")[0]}`,
  knobs: (data) => `${turned(data)}${data.by ? `, by ${data.by}` : ""}${data.why ? ` (${data.why})` : ""}`,
  view: ({ members, joined, left, died }) =>
    [many("joined", joined), many("left", left), many("died", died), `${members.length} train`].filter(Boolean).join("; "),
  actor: ({ name, node, pid }) => `${name} is up on ${node} (pid ${pid})`,
  death: ({ worker, why }) => `worker ${worker} is gone: ${why}`,
  checkpoint: ({ checkpoint, round }) => `checkpoint ${checkpoint} is complete, round ${round}`,
  checkpoint_failed: ({ checkpoint, who, why }) => `checkpoint ${checkpoint} could not be written by ${who}: ${why}`,
  divergence: ({ who, problem, parameter }) =>
    `${who} skips its batch: ${problem}${parameter && !problem.includes(parameter) ? ` (${parameter})` : ""}`,
  stuck: ({ who, step, for_s, usual_s, where }) =>
    `${who} computes step ${step} for ${seconds(for_s)}${usual_s === null ? "" : `, usually ${seconds(usual_s)}`}: ${where.split("\n")[0]}`,
  notice: ({ text }) => text,
};
const TONES = { death: "bad", divergence: "bad", stuck: "bad", checkpoint_failed: "bad", knobs: "turn" };

function many(verb, list) {
  return list?.length ? `worker ${list.join(", ")} ${verb}` : "";
}

export function Log({ events }) {
  const [kind, setKind] = useState("");
  const kinds = [...new Set(events.map((event) => event.kind))].sort();
  const shown = events.filter((event) => !kind || event.kind === kind).slice(-SHOWN).reverse();
  return html`<div class="log">
    <label class="inline">Show <select value=${kind} onChange=${(event) => setKind(event.target.value)}>
      <option value="">everything</option>${kinds.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
    <ol>${shown.map((event) => html`<li key=${event.sequence} data-sequence=${event.sequence}>
      <span class="when">step ${event.step}<small> ${seconds(event.time_s)}</small></span><span class="kind ${TONES[event.kind] ?? ""}">${event.kind.replace("_", " ")}</span>
      <span>${WORDS[event.kind]?.(event.data) ?? JSON.stringify(event.data)}</span></li>`)}</ol>
    ${!shown.length && html`<p class="nothing">Nothing yet.</p>`}
  </div>`;
}
