/** Short sentences about what was just done or went wrong; read out by screen readers. */

import { html, signal } from "../lib.js";

const SHOWN_MS = 7000;
const notices = signal([]);
let number = 0;

/** Say something; `action` is `{ label, run }`, such as a way back. */
export function say(text, { tone = "info", action = null, lasting = false } = {}) {
  const notice = { number: ++number, text, tone, action };
  notices.value = [...notices.value.slice(-3), notice];
  if (!lasting) setTimeout(() => drop(notice.number), action ? 3 * SHOWN_MS : SHOWN_MS);
  return notice.number;
}

export function complain(error) {
  if (error.name !== "AbortError") say(error.message, { tone: "bad" });
}

export function drop(gone) {
  notices.value = notices.value.filter((one) => one.number !== gone);
}

export function Notices() {
  return html`<div class="notices" role="status" aria-live="polite">
    ${notices.value.map(
      (one) => html`<p key=${one.number} class="notice ${one.tone}">
        <span>${one.text}</span>
        ${one.action && html`<button class="small" onClick=${() => { drop(one.number); one.action.run(); }}>${one.action.label}</button>`}
        <button class="small quiet" aria-label="Dismiss" onClick=${() => drop(one.number)}>×</button>
      </p>`,
    )}
  </div>`;
}
