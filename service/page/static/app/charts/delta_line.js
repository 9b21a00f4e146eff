/** SelSync's threshold as a line over the signals that can be dragged, or moved with the arrow keys. */

import { short } from "../format.js";

const KEY_PAUSE_MS = 800;
const STEPS = { ArrowUp: 1, ArrowDown: -1, PageUp: 5, PageDown: -5 };

/**
 * Lay the line over a plot.
 *
 * `value()` is the threshold in force or asked for, null if none is known; `canTurn()` says whether the reader may move it;
 * `turn(value)` is called when it is let go. Return an object with `place()`, to be called after each painting, and `end()`.
 */
export function deltaLine(plot, { value, canTurn, turn }) {
  const line = document.createElement("div");
  line.className = "delta-line";
  line.append(document.createElement("span"));
  plot.over.append(line);
  let held = null; // where it is while it is moved
  let timer = 0;

  const shown = () => held ?? value();
  const bounds = () => [Math.max(0, plot.scales.y.min ?? 0), plot.scales.y.max ?? 1];

  const place = () => {
    const now = shown();
    line.hidden = now === null || plot.scales.y.max === null || plot.scales.y.max === undefined;
    if (line.hidden) return;
    const [low, high] = bounds();
    const at = Number.isFinite(now) ? plot.valToPos(Math.min(high, Math.max(low, now)), "y") : 0;
    line.style.transform = `translateY(${Math.round(Math.max(0, at))}px)`;
    line.classList.toggle("held", held !== null);
    line.classList.toggle("low", at < 24);
    line.firstChild.textContent = `delta ${short(now)}`;
    describe(line, now, low, high, canTurn());
  };

  const let_go = () => {
    clearTimeout(timer);
    const asked = held;
    held = null;
    if (asked !== null && asked !== value()) turn(Number(asked.toPrecision(3)));
    place();
  };

  const moved = (event) => {
    const [low, high] = bounds();
    const top = event.clientY - plot.over.getBoundingClientRect().top;
    held = Math.min(high, Math.max(low, plot.posToVal(Math.max(0, Math.min(plot.over.clientHeight, top)), "y")));
    place();
  };

  line.addEventListener("pointerdown", (event) => {
    event.stopPropagation(); // dragging elsewhere selects a range
    if (!canTurn() || event.button !== 0) return;
    event.preventDefault();
    line.focus();
    line.setPointerCapture(event.pointerId);
    line.addEventListener("pointermove", moved);
  });
  line.addEventListener("mousedown", (event) => event.stopPropagation());
  line.addEventListener("pointerup", () => {
    line.removeEventListener("pointermove", moved);
    let_go();
  });
  line.addEventListener("pointercancel", () => {
    line.removeEventListener("pointermove", moved);
    held = null;
    place();
  });
  line.addEventListener("keydown", (event) => {
    if (!canTurn()) return;
    const [low, high] = bounds();
    if (event.key in STEPS) {
      const from = Number.isFinite(shown()) ? shown() : high;
      held = Math.min(high, Math.max(low, from + (STEPS[event.key] * (high - low)) / 50));
      clearTimeout(timer);
      timer = setTimeout(let_go, KEY_PAUSE_MS);
    } else if (event.key === "Enter") let_go();
    else if (event.key === "Escape") held = null;
    else return;
    event.preventDefault();
    place();
  });

  return {
    place,
    end: () => {
      clearTimeout(timer);
      line.remove();
    },
  };
}

function describe(line, now, low, high, canTurn) {
  const facts = canTurn
    ? {
        role: "slider",
        tabindex: "0",
        "aria-label": "Threshold delta",
        "aria-orientation": "vertical",
        "aria-valuemin": short(low),
        "aria-valuemax": short(Math.max(high, Number.isFinite(now) ? now : high)),
        "aria-valuenow": Number.isFinite(now) ? String(Number(now.toPrecision(3))) : short(high),
        "aria-valuetext": `delta ${short(now)}`,
        title: "Drag, or use the arrow keys: steps whose signal is above it synchronise",
      }
    : { "aria-hidden": "true" };
  for (const [name, value] of Object.entries(facts)) if (line.getAttribute(name) !== value) line.setAttribute(name, value);
}
