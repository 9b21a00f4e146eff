/** A line as small as a word. */

import { html } from "../lib.js";

const [WIDTH, HEIGHT] = [96, 26];

/** `values` in order, whatever lies between them; `label` says what they are. */
export function Spark({ values, label, tone = "s0" }) {
  if (!values || values.length < 2) return html`<span class="spark empty" aria-hidden="true"></span>`;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const span = high - low || 1;
  const points = values
    .map((value, n) => `${((n * WIDTH) / (values.length - 1)).toFixed(1)},${(HEIGHT - 3 - ((value - low) / span) * (HEIGHT - 6)).toFixed(1)}`)
    .join(" ");
  const [x, y] = points.slice(points.lastIndexOf(" ") + 1).split(",");
  return html`<svg class="spark ${tone}" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${label}>
    <polyline points=${points} /><circle cx=${Math.min(x, WIDTH - 2)} cy=${y} r="2.2" />
  </svg>`;
}
