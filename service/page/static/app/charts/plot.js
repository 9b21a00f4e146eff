/** A line chart: uPlot in a figure with a live legend; its data is asked for each time it is painted. */

import { html, useEffect, useRef } from "../lib.js";
import { short } from "../format.js";
import { colour, lineColour } from "../theme.js";
import uPlot from "../../vendor/uplot.js";
import { AXES } from "./axes.js";
import { drawColumns, isDense, isSparse } from "./dense.js";
import { whileVisible } from "./visible.js";

/**
 * A chart.
 *
 * `lines`: `[{ label, colour?, dash?, fill?, width?, stepped? }]`; `data(range)`: `[xs, ys, …]` to draw; `view`: axis, scale, range;
 * `version`: a signal that goes up with new data; `marks`: what to paint over it, `(plot) => void`;
 * `isStacked`: each line lies on the next one; `isLog`: a log scale whatever the view has;
 * `values`: values the y axis must show, `() => [number]`; `over`: elements above the plot, `(plot, element) => end`.
 */
export function Plot(props) {
  const { id, title, note, lines, view, version, format = short, height = 210, children } = props;
  const place = useRef(null);
  const legend = useRef(null);
  const now = useRef(props);
  now.current = props;
  const kind = view.kind.value;
  const isLog = props.isLog ?? (view.isLog.value && props.canLog !== false);
  const isLogX = view.isLogX.value;
  const shape = JSON.stringify([lines, kind, isLog, isLogX, height]);
  useEffect(() => mounted(place.current, legend.current, now, { kind, isLog, isLogX }), [shape]);
  return html`<figure class="chart card" id=${id} aria-labelledby="${id}-title">
    <figcaption>
      <h3 id="${id}-title">${title}</h3>
      ${note && html`<p class="note">${note}</p>`}
      <ul class="legend" ref=${legend}>
        ${lines.map((line, n) => html`<li key=${line.label}><i class="swatch s${(line.colour ?? n) % 8} ${line.dash ? "dashed" : ""}"></i>${line.label} <b>–</b></li>`)}
      </ul>
    </figcaption>
    <div class="plot" ref=${place}></div>
    ${children}
  </figure>`;
}

function mounted(place, legend, now, scales) {
  let plot = null;
  let endOver = null;
  const numbers = [...legend.querySelectorAll("b")];

  const build = () => {
    endOver?.();
    plot?.destroy();
    plot = new uPlot(options(place, now, scales, numbers), [[]], place);
    endOver = now.current.over?.(plot, place);
    const words = `${now.current.title} against ${AXES[scales.kind].words}${scales.isLog ? ", logarithmic" : ""}`;
    plot.ctx.canvas.setAttribute("role", "img");
    plot.ctx.canvas.setAttribute("aria-label", words);
    place.plot = plot; // for tests and the curious: what the chart shows
  };

  const painter = () => {
    const { data, view } = now.current;
    const width = place.clientWidth;
    if (!width) return;
    const range = view.range.value;
    const found = scales.isLogX ? positive(data(range)) : data(range);
    plot.batch(() => {
      if (plot.width !== width) plot.setSize({ width, height: now.current.height ?? 210 });
      plot.setData(found, false);
      const xs = found[0];
      const all = xs.length ? [xs[0], xs[xs.length - 1]] : [1, 10];
      const [min, max] = range ?? (all[0] === all[1] ? [all[0], all[0] + 1] : all);
      plot.setScale("x", { min, max });
    });
    place.dataset.points = found[0].length;
    pointed(plot, now.current, numbers);
  };

  build();
  const end = whileVisible(place, now.current.version, painter, { onColours: build });
  const stopRange = now.current.view.range.subscribe(() => painter());
  return () => {
    end();
    stopRange();
    endOver?.();
    plot.destroy();
  };
}

/** A log axis begins with the first place above zero. */
function positive(columns) {
  const from = columns[0].findIndex((x) => x > 0);
  return from < 0 ? columns.map(() => []) : columns.map((column) => column.slice(from));
}

function options(place, now, { kind, isLog, isLogX }, numbers) {
  const axis = { stroke: colour("muted"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), size: 4 } };
  const format = now.current.format ?? short;
  const font = "12px system-ui, sans-serif";
  return {
    width: Math.max(50, place.clientWidth),
    height: now.current.height ?? 210,
    legend: { show: false },
    padding: [8, 20, 0, 0],
    scales: {
      x: { time: false, auto: false, distr: isLogX ? 3 : 1, range: (_, min, max) => [min, max] },
      y: { distr: isLog ? 3 : 1, range: (u, min, max) => limits(min, max, isLog, now.current.values?.() ?? [], now.current) },
    },
    axes: [
      { ...axis, font, size: 30, space: 70, splits: isLogX ? powers : undefined, filter: isLogX ? spread : undefined, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : AXES[kind].format(tick))) },
      { ...axis, font, size: 58, space: 32, splits: isLog ? powers : undefined, filter: isLog ? (_, ticks) => ticks : undefined, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) },
    ],
    series: [{}, ...now.current.lines.map((line, n) => drawn(line, n))],
    cursor: {
      sync: { key: now.current.group ?? "page", setSeries: false },
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      bind: { dblclick: () => () => (now.current.view.range.value = null) },
    },
    hooks: {
      setSelect: [(u) => selected(u, now.current.view)],
      setCursor: [(u) => pointed(u, now.current, numbers)],
      draw: [(u) => now.current.marks?.(u)],
    },
  };
}

/** Places on a log scale: powers of ten, and where there are few of them, what lies between. */
function powers(u, axis, low, high) {
  if (!(low > 0) || !(high > low)) return [];
  const decades = Math.log10(high / low);
  const parts = decades > 4 ? [1] : decades > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const part of parts) found.push(part * 10 ** power);
  }
  return found.filter((tick) => tick >= low && tick <= high);
}

/** Leave out names of places that would lie over each other. */
function spread(u, ticks) {
  let end = -Infinity;
  return ticks.map((tick) => {
    const at = u.valToPos(tick, "x");
    if (at - end < 56) return null;
    end = at;
    return tick;
  });
}

function drawn(line, n) {
  const stroke = lineColour(line.colour ?? n);
  const fill = line.fill ? colour(`f${(line.colour ?? n) % 8}`) : undefined;
  const width = line.width ?? 1.6;
  const usual = line.stepped ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear();
  const paths = (u, number, from, to) => {
    if (!isDense(u, number, from, to)) return usual(u, number, from, to);
    drawColumns(u, number, from, to, { stroke, width, isFilled: Boolean(line.fill), fill, dash: line.dash });
    return null;
  };
  return {
    label: line.label,
    stroke,
    width,
    dash: line.dash,
    fill,
    paths,
    points: { show: line.dots ? isSparse : false, size: 4 },
    spanGaps: true,
  };
}

/** The y axis: all values and a little room, and whatever else must be seen. */
function limits(min, max, isLog, values, { bounds, foot = 0 }) {
  const all = [min, max, ...values].filter((one) => one !== null && Number.isFinite(one) && (!isLog || one > 0));
  if (!all.length) return isLog ? [0.1, 1] : [0, 1];
  let [low, high] = [Math.min(...all), Math.max(...all)];
  if (isLog) return [low / 1.15, high * 1.15];
  const room = 0.06 * (high - low || Math.abs(high) || 1);
  [low, high] = [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  low -= foot * (high - low);
  return bounds ? [Math.max(bounds[0], low), Math.min(bounds[1], high)] : [low, high];
}

function selected(u, view) {
  if (u.select.width < 4) return;
  const { left, width } = u.select;
  view.range.value = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

/** The legend has the last values, or those under the pointer; of stacked lines what each adds. */
function pointed(u, { lines, format = short, isStacked }, numbers) {
  const at = u.cursor.idx ?? u.data[0].length - 1;
  const values = lines.map((_, n) => nearest(u.data[n + 1], at));
  values.forEach((value, n) => {
    const own = isStacked && value !== null && n + 1 < values.length ? value - values[n + 1] : value;
    if (numbers[n]) numbers[n].textContent = format(own);
  });
}

function nearest(values, at) {
  for (let i = at; i >= 0; i--) if (values?.[i] !== undefined && values[i] !== null) return values[i];
  return null;
}
