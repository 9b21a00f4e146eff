/** A state as a word with a colour, and how far a job is. */

import { html } from "../lib.js";

const TONES = {
  PENDING: "wait", STARTING: "wait", RUNNING: "live", PAUSED: "held", RESIZING: "live", RECOVERING: "held",
  STOPPING: "held", SUCCEEDED: "good", FAILED: "bad", STOPPED: "off", REACHED: "good", MISSED: "held",
};

export function State({ state, reason }) {
  return html`<span class="state ${TONES[state] ?? "off"}" title=${reason || undefined}>${state.toLowerCase()}</span>`;
}

export function Progress({ job }) {
  const share = job.steps ? Math.min(1, job.step / job.steps) : 0;
  const words = job.queue_position ? `waits, place ${job.queue_position} in line` : `${job.step.toLocaleString("en")} of ${job.steps.toLocaleString("en")} steps`;
  return html`<span class="progress"><progress max="1" value=${share} aria-label="Progress of ${job.id}"></progress><span>${words}</span></span>`;
}

export function Labels({ labels, onPick }) {
  return Object.entries(labels ?? {}).map(([name, value]) =>
    onPick
      ? html`<button class="label" onClick=${() => onPick(`${name}:${value}`)} title="Only jobs with this label">${name}: ${value}</button>`
      : html`<span class="label">${name}: ${value}</span>`,
  );
}
