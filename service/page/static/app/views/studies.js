/** All searches, newest first. */

import { get } from "../api.js";
import { follow } from "../data/stream.js";
import { ago } from "../format.js";
import { html, signal, useEffect, useMemo } from "../lib.js";
import { Link, spoken } from "../parts/link.js";
import { complain } from "../parts/notices.js";
import { State } from "../parts/state.js";
import { link } from "../router.js";

export function Studies() {
  const studies = useMemo(() => signal(null), []);
  const state = useMemo(() => signal("opening"), []);
  useEffect(() => {
    const load = () => get("/studies", { limit: 200 }).then((page) => (studies.value = page.items), complain);
    load();
    return follow("/stream", { kinds: "none" }, {
      onMessage: (name, data) => name === "studies" && (studies.value = merged(studies.value ?? [], data)),
      onLink: spoken((now) => {
        state.value = now;
        if (now === "back") load();
      }),
    });
  }, []);
  const list = studies.value;
  return html`<main><header class="top"><h1>Studies</h1><${Link} state=${state.value} /></header>
    ${list && !list.length && html`<section class="nothing"><p>No study yet. One searches the fields of a job for what sends little and learns well; <code>POST /api/v1/studies</code> starts it.</p></section>`}
    ${list && list.length > 0 && html`<div class="scroll card flush" tabindex="0" role="region" aria-label="Studies"><table class="jobs"><thead><tr><th scope="col">Study</th><th scope="col">State</th><th scope="col">Trials</th><th scope="col">Answer</th><th scope="col">Begun</th></tr></thead>
      <tbody>${list.map((study) => html`<tr key=${study.id}><th scope="row"><a href=${link("studies", study.id)}>${study.id}</a><span class="under">${study.owner}</span></th><td><${State} state=${study.state} /></td>
        <td><span class="progress"><progress max=${study.trials} value=${study.begun} aria-label="Trials of ${study.id}"></progress><span>${study.begun} of ${study.trials}</span></span></td><td>${study.reason}</td><td>${ago(study.created_at)}</td></tr>`)}</tbody></table></div>`}
  </main>`;
}

function merged(list, fresh) {
  const byId = new Map([...list, ...fresh].map((study) => [study.id, study]));
  return [...byId.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
}
