/** What each stage did and when: a row for every stage of every replica, forward and backward passes as bars. */

import { html, useState } from "../lib.js";
import { seconds } from "../format.js";

const SHOWN_STEPS = 12;
const [ROW, LEFT, WIDTH] = [30, 118, 1000];
const KINDS = { forward: "s0", backward: "s1", step: "s2" };

export function Schedule({ spans }) {
  const steps = [...new Set(spans.map((span) => span.step))].sort((a, b) => a - b);
  const [first, setFirst] = useState(Math.max(0, Math.floor(steps.length / 2) - SHOWN_STEPS / 2));
  const begin = Math.min(first, Math.max(0, steps.length - SHOWN_STEPS));
  const [from, to] = [steps[begin], steps[Math.min(steps.length, begin + SHOWN_STEPS) - 1]];
  const shown = spans.filter((span) => span.step >= from && span.step <= to);
  const start = Math.min(...shown.map((span) => span.start_s));
  const length = Math.max(...shown.map((span) => span.end_s)) - start || 1;
  const rows = [...new Set(shown.map((span) => `${span.replica}/${span.stage}`))].sort(byNumbers);
  const x = (time) => LEFT + ((time - start) / length) * (WIDTH - LEFT);
  const height = rows.length * ROW + 24;
  return html`<div class="schedule">
    <p class="legend">${Object.entries(KINDS).map(([kind, tone]) => html`<span><i class="swatch ${tone}"></i>${kind}</span>`)}</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Schedule"><svg viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="Passes of each stage, steps ${from} to ${to}, over ${seconds(length)}">
      ${rows.map((row, n) => html`<text class="row-name" x="0" y=${n * ROW + 19}>replica ${row.split("/")[0]}, stage ${row.split("/")[1]}</text><rect class="lane" x=${LEFT} y=${n * ROW + 3} width=${WIDTH - LEFT} height=${ROW - 6} />`)}
      ${shown.map((span) => {
        const [left, width] = [x(span.start_s), Math.max(1, x(span.end_s) - x(span.start_s))];
        const top = rows.indexOf(`${span.replica}/${span.stage}`) * ROW + 3;
        const name = span.microbatch ? `${span.step}.${span.microbatch}` : `${span.step}`;
        return html`<g class="pass ${KINDS[span.kind]}"><rect x=${left} y=${top} width=${width} height=${ROW - 6} rx="2"><title>${span.kind} of step ${span.step}, microbatch ${span.microbatch}: ${seconds(span.end_s - span.start_s)}</title></rect>
          ${span.kind !== "step" && width > 7 * name.length + 2 && html`<text x=${left + width / 2} y=${top + 16}>${name}</text>`}</g>`;
      })}
      <text class="axis" x=${LEFT} y=${height - 6}>0</text><text class="axis end" x=${WIDTH} y=${height - 6}>${seconds(length)}</text>
    </svg></div>
    ${steps.length > SHOWN_STEPS && html`<label class="inline wide">From step ${from} <input type="range" min="0" max=${steps.length - SHOWN_STEPS} value=${begin} onInput=${(event) => setFirst(Number(event.target.value))} /></label>`}
  </div>`;
}

function byNumbers(a, b) {
  const [[i, j], [k, l]] = [a.split("/").map(Number), b.split("/").map(Number)];
  return i - k || j - l;
}
