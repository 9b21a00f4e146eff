/** What all charts of a view share: the axis, the scale, and the part that is looked at. */

import { AXES } from "../charts/axes.js";
import { html } from "../lib.js";

/** `all()` is the whole range there is on the axis now; `onTurn` hears of another axis or scale. */
export function Toolbar({ view, all, onTurn = () => {} }) {
  const turn = (kind) => {
    view.turnTo(kind);
    onTurn();
  };
  const zoom = (by, shift) => () => view.zoom(by, shift, all());
  const isPart = view.range.value !== null;
  return html`<div class="toolbar card" role="toolbar" aria-label="Charts">
    <span class="choice" role="group" aria-label="Horizontal axis">
      ${Object.entries(AXES).map(([kind, { label }]) => html`<button aria-pressed=${view.kind.value === kind} onClick=${() => turn(kind)}>${label}</button>`)}
    </span>
    <label class="check"><input type="checkbox" checked=${view.isLog.value} onChange=${(event) => { view.isLog.value = event.target.checked; onTurn(); }} /> log scale</label>
    <label class="check"><input type="checkbox" checked=${view.isLogX.value} onChange=${(event) => { view.isLogX.value = event.target.checked; view.range.value = null; onTurn(); }} /> log axis</label>
    <span class="grow"></span>
    <span class="zoom" role="group" aria-label="Zoom">
      <button onClick=${zoom(1, -0.25)} disabled=${!isPart} aria-label="Earlier">◀</button>
      <button onClick=${zoom(0.5, 0)} aria-label="Zoom in">+</button>
      <button onClick=${zoom(2, 0)} disabled=${!isPart} aria-label="Zoom out">−</button>
      <button onClick=${zoom(1, 0.25)} disabled=${!isPart} aria-label="Later">▶</button>
      <button onClick=${() => (view.range.value = null)} disabled=${!isPart}>All</button>
    </span>
  </div>`;
}
