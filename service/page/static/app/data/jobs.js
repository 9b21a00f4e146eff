/** The list of jobs, as one stream keeps it: summaries as they change, and a few values of each for spark lines. */

import { get } from "../api.js";
import { batch, signal } from "../lib.js";
import { spoken } from "../parts/link.js";
import { follow } from "./stream.js";

const PAGE = 50;
const SPARK = 48;
const GATHER_MS = 700;
const SPARK_NAMES = ["eval/accuracy", "train/loss"];

export const GROUPS = {
  all: {},
  live: { live: true },
  succeeded: { state: "SUCCEEDED" },
  "failed or stopped": { state: "FAILED,STOPPED" },
};

export class JobList {
  constructor() {
    this.jobs = signal([]);
    /** Values for the spark lines, by job and metric. */
    this.sparks = signal({});
    this.cursor = signal(null);
    this.isLoaded = signal(false);
    this.link = signal("opening");
    this.problem = signal("");
    this.filter = { group: "all", text: "", label: "" };
    this.bare = new Map();
    this.timer = 0;
  }

  open() {
    this.load();
    this.stop = follow("/stream", { kinds: "none" }, {
      onMessage: (name, data) => this.#take(name, data),
      onLink: spoken((state) => {
        this.link.value = state;
        if (state === "back") this.load();
      }),
    });
  }

  close() {
    this.stop?.();
    clearTimeout(this.timer);
    this.asking?.abort();
  }

  /** Show other jobs: those of a group, with words in their name, with a label. */
  narrow(filter) {
    this.filter = { ...this.filter, ...filter };
    this.load();
  }

  async load(cursor = null) {
    this.asking?.abort();
    this.asking = new AbortController();
    const { group, text, label } = this.filter;
    const query = { ...GROUPS[group], name: text, label, limit: PAGE, cursor: cursor ?? undefined };
    try {
      const page = await get("/jobs", query, this.asking.signal);
      batch(() => {
        this.jobs.value = cursor ? [...this.jobs.value, ...page.items] : page.items;
        this.cursor.value = page.next_cursor;
        this.isLoaded.value = true;
        this.problem.value = "";
      });
      await this.#loadSparks(page.items);
    } catch (error) {
      if (error.name !== "AbortError") this.problem.value = error.message;
    }
  }

  async #loadSparks(jobs) {
    if (!jobs.length) return;
    const query = { jobs: jobs.map((job) => job.id).join(","), names: SPARK_NAMES.join(","), points: SPARK };
    const answer = await get("/metrics/series", query);
    const found = { ...this.sparks.value };
    for (const { job, series } of answer.jobs) {
      found[job] = Object.fromEntries(series.map((one) => [one.name, thinned(one.value.filter((value) => value !== null))]));
    }
    this.sparks.value = found;
  }

  /** A job that has come a long way between two summaries has a history to be asked for. */
  #fetchLater(jobs) {
    for (const job of jobs) this.bare.set(job.id, job);
    if (!this.bare.size || this.timer) return;
    this.timer = setTimeout(() => {
      const asked = [...this.bare.values()].slice(0, PAGE);
      this.bare.clear();
      this.timer = 0;
      this.#loadSparks(asked).catch(() => {});
    }, GATHER_MS);
  }

  #take(name, data) {
    if (name === "removed") this.jobs.value = this.jobs.value.filter((job) => !data.includes(job.id));
    if (name !== "jobs") return;
    const byId = new Map(this.jobs.value.map((job) => [job.id, job]));
    const sparks = { ...this.sparks.value };
    const bare = [];
    for (const job of data) {
      if (!byId.has(job.id) && !this.#fits(job)) continue;
      byId.set(job.id, { ...byId.get(job.id), ...job });
      sparks[job.id] = grown(sparks[job.id] ?? {}, job);
      if (job.step > 0 && !Object.values(sparks[job.id]).some((values) => values.length > 1)) bare.push(job);
    }
    this.#fetchLater(bare);
    batch(() => {
      this.jobs.value = [...byId.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
      this.sparks.value = sparks;
    });
  }

  #fits(job) {
    const { group, text, label } = this.filter;
    const { live, state } = GROUPS[group];
    if (live !== undefined && live === job.is_terminal) return false;
    if (state && !state.split(",").includes(job.state)) return false;
    if (text && !`${job.id} ${job.name}`.includes(text)) return false;
    const [name, ...value] = label.split(":");
    return !label || (name in (job.labels ?? {}) && (!value.length || job.labels[name] === value.join(":")));
  }
}

/** The spark lines of a job after one more value of each. */
function grown(lines, job) {
  const found = { ...lines };
  for (const name of SPARK_NAMES) {
    const value = job.metrics[name];
    const known = found[name] ?? [];
    if (value === null || value === undefined || known[known.length - 1] === value) continue;
    found[name] = known.length > 2 * SPARK ? thinned([...known, value]) : [...known, value];
  }
  return found;
}

function thinned(values) {
  const every = Math.ceil(values.length / SPARK);
  return values.filter((_, n) => n % every === 0 || n === values.length - 1);
}
