/** The processes of a job: where each runs, on what, how busy it is and how often it was started again. */

import { percent, seconds, short, size } from "../format.js";
import { html } from "../lib.js";

export function Actors({ actors }) {
  if (!actors?.length) return html`<p class="nothing">No process of this job is known yet.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Actors"><table class="actors">
    <thead><tr><th scope="col">Actor</th><th scope="col">State</th><th scope="col">Node</th><th scope="col">Device</th><th scope="col" class="number">A step takes</th>
      <th scope="col" class="number">Speed</th><th scope="col" class="number">Busy</th><th scope="col" class="number">Memory</th><th scope="col" class="number">Sent</th><th scope="col" class="number">Restarts</th></tr></thead>
    <tbody>${actors.map((actor) => html`<tr key=${actor.name}>
      <th scope="row">${actor.name}</th><td><span class="life ${actor.life ?? "ended"}">${actor.life ?? "ended"}</span></td><td>${actor.node ? html`${actor.node} <small>pid ${actor.pid}</small>` : "–"}</td><td>${actor.device ?? "–"}</td>
      <td class="number">${actor.compute_s ? seconds(actor.compute_s) : "–"}</td><td class="number">${actor.steps_per_s ? `${short(actor.steps_per_s)} /s` : "–"}</td>
      <td class="number">${actor.busy_ratio === null || actor.busy_ratio === undefined ? "–" : percent(actor.busy_ratio)}</td><td class="number">${size(actor.memory_bytes)}</td>
      <td class="number">${actor.sent_bytes ? size(actor.sent_bytes) : "–"}</td><td class="number ${actor.restarts ? "warn" : ""}">${actor.restarts}</td></tr>`)}</tbody>
  </table></div>`;
}
