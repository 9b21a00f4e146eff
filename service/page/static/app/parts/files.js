/** What a job has made: its final model, checkpoints and traces. Whoever may steer takes them along. */

import { download, get } from "../api.js";
import { canSteer } from "../data/session.js";
import { size } from "../format.js";
import { html, useState } from "../lib.js";
import { complain } from "./notices.js";

/** A browser holds a file in memory until it is whole: what is larger is for the command line. */
const LARGEST_BYTES = 256e6;

export function Files({ job }) {
  const [files, setFiles] = useState(null);
  const look = (event) => event.target.open && get(`/jobs/${job.id}/artifacts`).then((page) => setFiles(page.items), complain);
  return html`<details class="card files" onToggle=${look}><summary>Files</summary>
    ${files && !files.length && html`<p class="nothing">Nothing yet: checkpoints stand here once they are complete, the model once the job has ended.</p>`}
    ${files?.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Files"><table>
      <thead><tr><th scope="col">File</th><th scope="col">Kind</th><th scope="col" class="number">Step</th><th scope="col" class="number">Size</th>${canSteer.value && html`<th scope="col"><span class="hidden">Download</span></th>`}</tr></thead>
      <tbody>${files.map((file) => html`<tr key=${file.path}><th scope="row"><code>${file.path}</code></th><td>${file.kind}</td><td class="number">${file.step ?? "–"}</td><td class="number">${size(file.size_bytes)}</td>
        ${canSteer.value && html`<td><${Take} job=${job} file=${file} /></td>`}</tr>`)}</tbody>
    </table></div>`}
  </details>`;
}

function Take({ job, file }) {
  if (file.size_bytes > LARGEST_BYTES) return html`<span class="note">large: <code>raysync download ${job.id}</code></span>`;
  const take = () => download(`/jobs/${job.id}/artifacts/${file.path}`, file.path.replaceAll("/", "-")).catch(complain);
  return html`<button class="small" onClick=${take} aria-label="Download ${file.path}">Download</button>`;
}
