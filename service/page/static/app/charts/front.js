/** A study's trials as points, cost against quality: the front no other beats, its picks, the floor. */

import { seconds, short, size } from "../format.js";
import { html, useState } from "../lib.js";

const [WIDTH, HEIGHT, LEFT, FOOT, TOP, RIGHT] = [720, 380, 70, 46, 18, 24];

/** `onPick(trial)` is called for a trial that is chosen. */
export function Front({ study, trials, onPick }) {
  const [over, setOver] = useState(null);
  const points = trials.filter((one) => one.cost !== null && one.cost > 0 && one.quality !== null);
  if (!points.length) return html`<p class="nothing">No trial has reached the floor yet; the front appears with the first that does.</p>`;
  const { metric, at_least, at_most } = study.spec.floor;
  const floor = at_least ?? at_most;
  const unit = study.spec.objective?.minimise ?? "bytes";
  const format = unit === "bytes" ? size : seconds;
  const x = scale(points.map((one) => Math.log10(one.cost)), LEFT, WIDTH - RIGHT);
  const y = scale([...points.map((one) => one.quality), floor], HEIGHT - FOOT, TOP);
  const place = (one) => [x.at(Math.log10(one.cost)), y.at(one.quality)];
  const front = study.front.map((number) => points.find((one) => one.number === number)).filter(Boolean);
  const picks = named(study.picks);
  const shown = over ?? front[0];
  return html`<div class="front">
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="group" aria-label="Trials: ${unit} until the floor against ${metric}">
      ${decades(x.low, x.high).map((tick) => html`<line class="grid" x1=${x.at(tick)} x2=${x.at(tick)} y1=${TOP} y2=${HEIGHT - FOOT} /><text class="axis" x=${x.at(tick)} y=${HEIGHT - FOOT + 16} text-anchor="middle">${format(10 ** tick)}</text>`)}
      ${ticks(y.low, y.high, 5).map((tick) => html`<line class="grid" x1=${LEFT} x2=${WIDTH - RIGHT} y1=${y.at(tick)} y2=${y.at(tick)} /><text class="axis" x=${LEFT - 8} y=${y.at(tick) + 4} text-anchor="end">${short(tick)}</text>`)}
      <line class="floor" x1=${LEFT} x2=${WIDTH - RIGHT} y1=${y.at(floor)} y2=${y.at(floor)} /><text class="axis floor-name" x=${WIDTH - RIGHT} y=${y.at(floor) - 5} text-anchor="end">floor ${short(floor)}</text>
      <text class="axis" x=${(LEFT + WIDTH) / 2} y=${HEIGHT - 8} text-anchor="middle">${unit === "bytes" ? "bytes" : "seconds"} until the floor, logarithmic</text>
      <text class="axis" transform="translate(14 ${(HEIGHT - FOOT) / 2}) rotate(-90)" text-anchor="middle">${metric}</text>
      <polyline class="front-line" points=${front.map((one) => place(one).join(",")).join(" ")} />
      ${points.map((one) => {
        const [left, top] = place(one);
        const isFront = study.front.includes(one.number);
        return html`<g key=${one.number} class="trial ${isFront ? "on-front" : "beaten"} ${picks[one.number] ? "pick" : ""}" tabindex="0" role="link" data-trial=${one.number}
          aria-label="Trial ${one.number}${picks[one.number] ? `, ${picks[one.number]}` : ""}: ${format(one.cost)}, ${metric} ${short(one.quality)}"
          onMouseEnter=${() => setOver(one)} onFocus=${() => setOver(one)} onClick=${() => onPick(one)} onKeyDown=${(event) => event.key === "Enter" && onPick(one)}>
          <circle class="reach" cx=${left} cy=${top} r="13" /><circle cx=${left} cy=${top} r=${picks[one.number] ? 7 : isFront ? 5 : 4} /></g>`;
      })}
      ${labels(front.filter((one) => picks[one.number]), place).map(([one, left, top, anchor]) => html`<text class="pick-name" x=${left} y=${top} text-anchor=${anchor}>${picks[one.number]}</text>`)}
    </svg>
    ${shown && html`<${Card} trial=${shown} name=${picks[shown.number]} format=${format} metric=${metric} />`}
  </div>`;
}

function Card({ trial, name, format, metric }) {
  return html`<div class="hover card" role="status"><p><b>Trial ${trial.number}</b>${name ? html` <span class="label">${name}</span>` : ""} <span class="note">${trial.kind}</span></p>
    <p>${metric} <b>${short(trial.quality, 4)}</b>, ${format(trial.cost)} until the floor${trial.total_bytes ? `, ${size(trial.total_bytes)} in all` : ""}</p>
    <ul>${Object.entries(trial.point).map(([path, value]) => html`<li><code>${path}</code> ${typeof value === "number" ? short(value) : String(value)}</li>`)}</ul>${trial.reason && html`<p class="note">${trial.reason}</p>`}</div>`;
}

/** Names of picks by trial; one trial may be several. */
export function named(picks) {
  const found = {};
  for (const [name, { trial }] of Object.entries(picks)) found[trial] = found[trial] ? `${found[trial]}, ${name}` : name;
  return found;
}

/** Where the names go: beside their point, on the side where there is room. */
function labels(front, place) {
  return front.map((one) => {
    const [left, top] = place(one);
    const isRight = left > WIDTH - 150;
    return [one, left + (isRight ? -12 : 12), Math.min(HEIGHT - FOOT - 4, top + 20), isRight ? "end" : "start"];
  });
}

function scale(values, from, to) {
  const [min, max] = [Math.min(...values), Math.max(...values)];
  const room = 0.08 * (max - min || Math.abs(max) || 1);
  const [low, high] = [min - room, max + room];
  return { low, high, at: (value) => Math.round(from + ((value - low) / (high - low)) * (to - from)) };
}

/** Places on a logarithmic axis, as powers of ten. */
function decades(low, high) {
  const parts = high - low > 3 ? [1] : high - low > 1 ? [1, 3] : [1, 2, 5];
  const found = [];
  for (let power = Math.floor(low); power <= high; power++) for (const part of parts) found.push(power + Math.log10(part));
  return found.filter((tick) => tick >= low && tick <= high);
}

function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}
