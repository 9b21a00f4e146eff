/** The same metrics of several jobs: history in one request, what is new in one stream. */

import { get } from "../api.js";
import { signal } from "../lib.js";
import { spoken } from "../parts/link.js";
import { Sent } from "./sent.js";
import { Series } from "./series.js";
import { follow } from "./stream.js";

const POINTS = 1000;

export class Overlay {
  constructor(ids) {
    this.ids = ids;
    this.version = signal(0);
    this.jobs = signal({});
    this.link = signal("opening");
    this.problem = signal("");
    this.series = new Map();
    this.last = {};
    this.sent = {};
  }

  of(id, name) {
    const key = `${id} ${name}`;
    if (!this.series.has(key)) this.series.set(key, new Series(name));
    return this.series.get(key);
  }

  whole(kind) {
    const ends = [...this.series.values()].filter((one) => one.length).map((one) => [one[kind][0], one[kind][one.length - 1]]);
    return ends.length ? [Math.min(...ends.map((one) => one[0])), Math.max(...ends.map((one) => one[1]))] : [0, 1];
  }

  async open(names) {
    this.close();
    this.names = names;
    const opened = (this.opened = {});
    try {
      const jobs = await Promise.all(this.ids.map((id) => get(`/jobs/${id}`)));
      const answer = await get("/metrics/series", { jobs: this.ids.join(","), names: names.join(","), points: POINTS });
      if (opened !== this.opened) return;
      this.jobs.value = Object.fromEntries(jobs.map((job) => [job.id, job]));
      this.series = new Map();
      for (const found of answer.jobs) this.#put(found);
      this.problem.value = "";
      this.version.value += 1;
      const query = { jobs: this.ids.join(","), kinds: "metrics", after: this.ids.map((id) => this.last[id]).join(",") };
      this.stop = follow("/stream", query, {
        onMessage: (name, data) => this.#take(name, data),
        onLink: spoken((state) => (this.link.value = state)),
      });
    } catch (error) {
      this.problem.value = error.message;
    }
  }

  close() {
    this.opened = null;
    this.stop?.();
  }

  #put({ job, last, series }) {
    this.last[job] = last;
    for (const { name, step, time_s, bytes, value } of series) {
      const target = this.of(job, name);
      for (let i = 0; i < value.length; i++) target.push(step[i], time_s[i], bytes[i], value[i]);
      this.#sentOf(job).begin(bytes[bytes.length - 1] ?? 0);
    }
  }

  #sentOf(job) {
    return (this.sent[job] ??= new Sent());
  }

  #take(name, data) {
    if (name === "jobs") {
      const found = { ...this.jobs.value };
      for (const job of data) if (job.id in found) found[job.id] = { ...found[job.id], ...job };
      this.jobs.value = found;
    } else if (name === "gap") {
      this.open(this.names);
    } else if (name === "events") {
      for (const event of data) this.#measure(event);
      this.version.value += 1;
    }
  }

  #measure({ job, sequence, kind, step, time_s, data }) {
    if (kind !== "metrics" || sequence <= (this.last[job] ?? -1)) return;
    this.last[job] = sequence;
    const bytes = this.#sentOf(job).take(data);
    for (const name of this.names) if (name in data) this.of(job, name).push(step, time_s, bytes, data[name]);
  }
}
