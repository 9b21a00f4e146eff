/** A job as the page knows it: history fetched once, then every event as it comes, none twice and none left out. */

import { get } from "../api.js";
import { signal } from "../lib.js";
import { spoken } from "../parts/link.js";
import { follow } from "./stream.js";
import { Sent } from "./sent.js";
import { Series } from "./series.js";

const JOB_NAMES = [
  "train/loss", "train/samples_per_s", "sync/lssr", "sync/grad_delta", "sync/delta", "decision/sync",
  "comm/bytes_up", "comm/bytes_down", "comm/compression", "feedback/residual_norm", "feedback/lost_norm",
  "staleness/max", "staleness/mean", "time/compute_s", "time/encode_s", "time/sync_s", "sync/wait_s",
  "pipeline/bubble", "eval/accuracy", "eval/loss",
];
const WORKER_NAMES = ["sync/grad_delta", "time/compute_s", "staleness/last", "feedback/residual_norm"];
const POINTS = 2000;
const PASSING = new Set(["metrics", "decision", "reason"]);
const LOGGED = ["state", "knobs", "view", "actor", "death", "checkpoint", "checkpoint_failed", "divergence", "stuck", "notice"];
const LOG_LENGTH = 500;

export class JobData {
  constructor(id, { names = JOB_NAMES, workerNames = WORKER_NAMES, withLog = true, onEvents = () => {} } = {}) {
    this.id = id;
    this.options = { names, workerNames, withLog, onEvents };
    /** Goes up whenever charts have something new to draw. */
    this.version = signal(0);
    this.job = signal(null);
    this.log = signal([]);
    this.link = signal({ state: "opening", after: -1 });
    this.problem = signal("");
    this.reset();
  }

  reset() {
    this.series = new Map();
    /** Turns of knobs, in order: where they took effect, from what to what, by whom. */
    this.turns = [];
    this.lastSequence = -1;
    this.missed = 0;
    this.sent = new Sent();
    this.lastReason = null;
  }

  /** The series of a metric, of the job or of a worker; made when first asked for. */
  of(name, worker = null) {
    const key = worker === null ? name : `${name}@${worker}`;
    if (!this.series.has(key)) this.series.set(key, new Series(name, worker));
    return this.series.get(key);
  }

  has(name) {
    return (this.series.get(name)?.length ?? 0) > 0;
  }

  /** The series of a metric by worker, in their order. */
  byWorker(name) {
    const found = [...this.series.values()].filter((one) => one.name === name && one.worker !== null && one.length);
    return found.sort((a, b) => a.worker - b.worker);
  }

  evaluations() {
    return [...this.series.keys()].filter((name) => name.startsWith("eval/") && name !== "eval/round").sort();
  }

  /** Where an event lies on an axis. */
  place(kind, event) {
    if (kind === "step") return event.step;
    if (kind === "time") return event.time_s;
    const loss = this.series.get("train/loss");
    const at = loss ? loss.before("time", event.time_s) : -1;
    return at < 0 ? 0 : loss.bytes[at];
  }

  async open() {
    this.isClosed = false;
    try {
      await this.#load();
    } catch (error) {
      this.problem.value = error.message;
      if (error.status === 0 && !this.isClosed) this.retry = setTimeout(() => this.open(), 2000);
      return;
    }
    if (this.isClosed) return;
    this.problem.value = "";
    this.#follow();
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.retry);
    this.stop?.();
  }

  async #load() {
    const { names, workerNames, withLog } = this.options;
    const job = await get(`/jobs/${this.id}`);
    const mine = [...new Set([...names, ...Object.keys(job.metrics)])].slice(0, 50);
    const asked = [get("/metrics/series", { jobs: this.id, names: mine.join(","), points: POINTS })];
    if (workerNames.length) {
      asked.push(get("/metrics/series", { jobs: this.id, names: workerNames.join(","), by: "worker", points: 1000 }));
    }
    const logged = withLog ? this.#logged() : Promise.resolve([]);
    const [[own, workers], items] = await Promise.all([Promise.all(asked), logged]);
    this.reset();
    for (const answer of [own, workers]) for (const found of answer?.jobs[0].series ?? []) this.#put(found);
    this.sent.begin(0, this.of("comm/bytes_up").last, this.of("comm/bytes_down").last);
    // What came between the two answers is in one of them only: the stream tells it again, and only once here.
    this.lastSequence = Math.min(...[own, workers].filter(Boolean).map((answer) => answer.jobs[0].last));
    this.skip = { own: own.jobs[0].last, workers: workers?.jobs[0].last ?? -1 };
    this.log.value = items.filter((event) => event.sequence <= this.lastSequence);
    this.turns = this.log.value.filter((event) => event.kind === "knobs");
    this.job.value = job;
    this.version.value += 1;
  }

  /** What happened so far that is no measurement, in order. */
  async #logged() {
    const pages = await Promise.all(LOGGED.map((kind) => get(`/jobs/${this.id}/events`, { kind, limit: LOG_LENGTH })));
    return pages.flatMap((page) => page.items).sort((a, b) => a.sequence - b.sequence);
  }

  #put({ name, worker, unit, step, time_s, bytes, value }) {
    const series = this.of(name, worker);
    series.unit = unit;
    for (let i = 0; i < value.length; i++) series.push(step[i], time_s[i], bytes[i], value[i]);
    if (bytes.length) this.sent.begin(bytes[bytes.length - 1]);
  }

  #follow() {
    const query = { jobs: this.id, after: this.lastSequence };
    this.stop = follow("/stream", query, {
      onMessage: (name, data) => this.#take(name, data),
      onLink: spoken(
        (state) => (this.link.value = { state, after: this.lastSequence }),
        () => `, going on after event ${this.lastSequence}`,
      ),
    });
  }

  #take(name, data) {
    if (name === "jobs") {
      const mine = data.find((one) => one.id === this.id);
      if (mine && this.job.value) this.job.value = { ...this.job.value, ...mine };
    } else if (name === "removed") {
      this.problem.value = "this job was removed";
    } else if (name === "gap") {
      this.stop?.();
      this.open();
    } else if (name === "events") {
      this.take(data);
    }
  }

  /** Take in events; those that are known are left out, and places that are skipped are counted. */
  take(events) {
    const fresh = [];
    for (const event of events) {
      if (event.job !== this.id || event.sequence <= this.lastSequence) continue;
      if (event.sequence > this.lastSequence + 1) this.missed += event.sequence - this.lastSequence - 1;
      this.lastSequence = event.sequence;
      if (event.kind === "metrics") this.#measure(event);
      else if (event.kind === "decision") this.#decide(event);
      if (event.kind === "knobs") this.turns.push(event);
      if (!PASSING.has(event.kind)) fresh.push(event);
    }
    if (fresh.length && this.options.withLog) this.log.value = [...this.log.value, ...fresh].slice(-LOG_LENGTH);
    this.options.onEvents(fresh);
    this.version.value += 1;
  }

  #measure({ sequence, step, time_s, worker, data }) {
    const bytes = sequence > this.skip.own ? this.sent.take(data) : this.sent.total;
    if (sequence > this.skip.own) {
      for (const [name, value] of Object.entries(data)) this.of(name).push(step, time_s, bytes, value);
    }
    if (sequence <= this.skip.workers || worker === null || worker === undefined) return;
    for (const name of this.options.workerNames) {
      if (name in data) this.of(name, worker).push(step, time_s, bytes, data[name]);
    }
  }

  /** A decision says whether the step synchronised, and what each worker called for. */
  #decide({ sequence, step, time_s, data }) {
    this.lastReason = { step, ...data };
    if (sequence > this.skip.own) this.of("decision/sync").push(step, time_s, this.sent.total, data.sync ? 1 : 0);
    if (sequence <= this.skip.workers || !this.options.workerNames.length) return;
    for (const [worker, score] of Object.entries(data.scores ?? {})) {
      this.of("sync/grad_delta", Number(worker)).push(step, time_s, this.sent.total, score);
    }
  }
}
