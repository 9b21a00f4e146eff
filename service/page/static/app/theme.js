/** Light, dark, or as the system has it; and the colours as canvases need them. */

import { signal } from "./lib.js";

const KEY = "raysync.theme";
const CHOICES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");

export const theme = signal(localStorage.getItem(KEY) ?? "auto");

/** Goes up whenever colours change: whatever is painted by hand is painted again. */
export const palette = signal(0);

const known = new Map();
let probe = null;

export function startTheme() {
  document.documentElement.dataset.theme = theme.value;
  probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  system.addEventListener("change", repaint);
}

export function nextTheme() {
  theme.value = CHOICES[(CHOICES.indexOf(theme.value) + 1) % CHOICES.length];
  localStorage.setItem(KEY, theme.value);
  document.documentElement.dataset.theme = theme.value;
  repaint();
}

function repaint() {
  known.clear();
  palette.value += 1;
}

/** A colour of the style sheet, such as `ink` or `s0`, as a canvas takes it. */
export function colour(name) {
  if (!known.has(name)) {
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

/** The colour of the n-th of several lines. */
export const lineColour = (n) => colour(`s${n % 8}`);
