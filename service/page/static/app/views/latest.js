/** The newest job, whichever that is now: a screen on the wall. */

import { get } from "../api.js";
import { follow } from "../data/stream.js";
import { html, useEffect, useState } from "../lib.js";
import { complain } from "../parts/notices.js";
import { Job } from "./job.js";

export function Latest() {
  const [latest, setLatest] = useState(null);
  useEffect(() => {
    const newer = (jobs) => setLatest((now) => jobs.reduce((best, job) => (!best || job.created_at > best.created_at ? job : best), now));
    get("/jobs", { limit: 1 }).then((page) => newer(page.items), complain);
    return follow("/stream", { kinds: "none" }, { onMessage: (name, data) => name === "jobs" && newer(data) });
  }, []);
  if (!latest) return html`<main><h1>The latest job</h1><p class="nothing">There is none yet; this page shows it as soon as there is.</p></main>`;
  return html`<${Job} key=${latest.id} id=${latest.id} />`;
}
