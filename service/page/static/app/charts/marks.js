/** What is painted over a chart: where knobs were turned, and which steps synchronised. */

import { short } from "../format.js";
import { colour } from "../theme.js";

/** A line for every turn of a knob, at the place where it took effect; with `isNamed`, what it was turned to. */
export function paintTurns(u, turns, place, isNamed = false) {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.strokeStyle = ctx.fillStyle = colour("mark");
  ctx.lineWidth = 1.4 * ratio;
  ctx.setLineDash([2 * ratio, 3 * ratio]);
  [ctx.textAlign, ctx.textBaseline] = ["left", "alphabetic"];
  for (const turn of turns) {
    const left = Math.round(u.valToPos(place(turn), "x", true));
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    if (isNamed) named(u, turned(turn.data), left, ratio);
  }
  ctx.restore();
}

/** The words of a mark on a patch of the card's colour, on the side where there is room. */
function named({ ctx, bbox }, text, left, ratio) {
  const width = ctx.measureText(text).width + 8 * ratio;
  const from = left + width + 4 * ratio > bbox.left + bbox.width ? left - width - 2 * ratio : left + 2 * ratio;
  const ink = ctx.fillStyle;
  ctx.globalAlpha = 0.85;
  ctx.fillStyle = colour("card");
  ctx.fillRect(from, bbox.top + ratio, width, 16 * ratio);
  ctx.globalAlpha = 1;
  ctx.fillStyle = ink;
  ctx.fillText(text, from + 4 * ratio, bbox.top + 13 * ratio);
}

export function turned({ before, after }) {
  const word = (value) => (typeof value === "number" ? short(value) : String(value));
  return Object.keys(after)
    .filter((name) => before[name] !== after[name])
    .map((name) => (name === "pause" ? (after.pause ? "paused" : "resumed") : `${name} ${word(before[name])} → ${word(after[name])}`))
    .join(", ");
}

/** A tick at the foot of the chart for every step that synchronised; where they are dense, a bar as high as their share. */
export function paintTicks(u, series, kind) {
  const { ctx, bbox } = u;
  if (!series || !series.length) return;
  const ratio = devicePixelRatio;
  const height = 9 * ratio;
  const from = Math.max(0, series.before(kind, u.scales.x.min));
  const to = series.before(kind, u.scales.x.max) + 1;
  const foot = bbox.top + bbox.height;
  ctx.save();
  ctx.fillStyle = colour("tick");
  let synced = 0;
  for (let i = from; i < to; i++) synced += series.value[i] > 0 ? 1 : 0;
  if (2.5 * ratio * synced < bbox.width) {
    for (let i = from; i < to; i++) {
      if (series.value[i] > 0) ctx.fillRect(Math.round(u.valToPos(series[kind][i], "x", true)) - ratio / 2, foot - height, 1.5 * ratio, height);
    }
  } else {
    paintShares(u, series, kind, from, to, foot, height);
  }
  ctx.restore();
}

function paintShares(u, series, kind, from, to, foot, height) {
  const width = Math.max(2, 2 * devicePixelRatio);
  let place = null;
  let [synced, all] = [0, 0];
  const flush = () => {
    if (all) u.ctx.fillRect(place * width, foot - (height * synced) / all, width, (height * synced) / all);
  };
  for (let i = from; i < to; i++) {
    const here = Math.floor(u.valToPos(series[kind][i], "x", true) / width);
    if (here !== place) {
      flush();
      [place, synced, all] = [here, 0, 0];
    }
    synced += series.value[i] > 0 ? 1 : 0;
    all += 1;
  }
  flush();
}
