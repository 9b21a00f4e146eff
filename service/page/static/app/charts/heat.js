/** A heat map, worker by time: which of them lagged, and when. */

import { html, useEffect, useRef } from "../lib.js";
import { short } from "../format.js";
import { colour } from "../theme.js";
import { AXES } from "./axes.js";
import { whileVisible } from "./visible.js";

const ROW = 22;
const LEFT = 58;
const FOOT = 22;
const COLUMN = 4;

/** `rows()`: the series of the workers; each cell has the largest value that falls into it. */
export function Heat({ id, title, note, rows, view, version, format = short, children }) {
  const place = useRef(null);
  const scale = useRef(null);
  const now = useRef(null);
  now.current = { rows, view, format };
  const kind = view.kind.value;
  useEffect(() => {
    const canvas = place.current;
    const painter = () => painted(canvas, scale.current, now.current);
    const end = whileVisible(canvas.parentElement, version, painter);
    const stop = view.range.subscribe(painter);
    return () => {
      end();
      stop();
    };
  }, [kind, version]);
  return html`<figure class="chart card" id=${id} aria-labelledby="${id}-title">
    <figcaption><h3 id="${id}-title">${title}</h3>${note && html`<p class="note">${note}</p>`}
      <p class="legend heat-scale">low <i class="ramp"></i> high, at most <b ref=${scale}>–</b></p>${children}</figcaption>
    <div class="plot heat"><canvas ref=${place} role="img" aria-label="${title}: a row for each worker, ${AXES[kind].words} from left to right"></canvas></div>
  </figure>`;
}

function painted(canvas, scale, { rows, view, format }) {
  const list = rows();
  const ratio = devicePixelRatio;
  const width = canvas.parentElement.clientWidth;
  const height = Math.max(1, list.length) * ROW + FOOT;
  if (canvas.width !== width * ratio || canvas.height !== height * ratio) {
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  if (!list.length) return;
  const kind = view.kind.value;
  const [from, to] = view.range.value ?? span(list, kind);
  const columns = Math.max(1, Math.floor((width - LEFT) / COLUMN));
  const cells = list.map((series) => cellsOf(series, kind, from, to, columns));
  const most = Math.max(0, ...cells.flat().filter((value) => value !== undefined));
  const background = colour("cold");
  const ink = colour("hot");
  cells.forEach((row, n) => {
    pen.globalAlpha = 1;
    pen.fillStyle = background;
    pen.fillRect(LEFT, n * ROW, columns * COLUMN, ROW - 2);
    pen.fillStyle = ink;
    row.forEach((value, k) => {
      if (value === undefined || !most) return;
      pen.globalAlpha = Math.max(0, value / most) ** 0.7;
      pen.fillRect(LEFT + k * COLUMN, n * ROW, COLUMN, ROW - 2);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = colour("muted");
    pen.fillText(`worker ${list[n].worker}`, 0, n * ROW + 14);
  });
  pen.fillStyle = colour("muted");
  pen.fillText(AXES[kind].format(from), LEFT, height - 6);
  const end = AXES[kind].format(to);
  pen.fillText(end, LEFT + columns * COLUMN - pen.measureText(end).width, height - 6);
  scale.textContent = format(most);
  canvas.heat = { workers: list.map((one) => one.worker), cells, from, to, most };
}

function span(list, kind) {
  const ends = list.map((series) => [series[kind][0], series[kind][series.length - 1]]);
  const [from, to] = [Math.min(...ends.map((one) => one[0])), Math.max(...ends.map((one) => one[1]))];
  return to > from ? [from, to] : [from, from + 1];
}

/** The largest value of each column; a value holds until the next one comes. */
function cellsOf(series, kind, from, to, columns) {
  const found = new Array(columns).fill(undefined);
  const width = (to - from) / columns;
  const start = Math.max(0, series.before(kind, from));
  let previous = -1;
  for (let i = start; i < series.length && series[kind][i] <= to; i++) {
    const k = Math.min(columns - 1, Math.max(0, Math.floor((series[kind][i] - from) / width)));
    for (let gap = previous + 1; gap < k && previous >= 0; gap++) found[gap] = series.value[i - 1];
    found[k] = found[k] === undefined ? series.value[i] : Math.max(found[k], series.value[i]);
    previous = k;
  }
  return found;
}
