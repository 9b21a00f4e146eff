/**
 * Lines with about as many points as the chart has pixels: drawn column by column, each from its lowest to its highest value.
 *
 * It looks as the line would, and costs a hundredth: stroking a path of thousands of points takes browsers without a
 * graphics card a tenth of a second.
 */

/** So many points of all lines of a chart can be stroked in time; lines with fewer than one in two pixels always are. */
const STROKED = 1500;
const DENSE = 0.5;

export function isDense(u, number, from, to) {
  const own = count(u.data[number], from, to);
  if (own * devicePixelRatio < DENSE * u.bbox.width) return false;
  return u.data.slice(1).reduce((sum, values) => sum + count(values, from, to), 0) > STROKED;
}

/** Whether points of a line are so few that each can have a dot. */
export function isSparse(u, number, from, to) {
  return 8 * count(u.data[number], from, to) * devicePixelRatio < u.bbox.width;
}

function count(values, from, to) {
  let found = 0;
  for (let i = from; i <= to; i++) if (values[i] !== undefined && values[i] !== null) found++;
  return found;
}

/** Draw a series in columns; with `isFilled` down to the foot of the chart. */
export function drawColumns(u, number, from, to, { stroke, width, isFilled, fill, dash }) {
  const { ctx, bbox } = u;
  const xs = u.data[0];
  const ys = u.data[number];
  const thick = Math.max(1, Math.round(width * devicePixelRatio));
  const [x, y] = [placer(u, "x"), placer(u, "y")];
  const foot = bbox.top + bbox.height;
  const gap = dash ? (dash[0] + dash[1]) * devicePixelRatio : 0;
  let column = null;
  let [low, high, last] = [0, 0, null];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const flush = (next) => {
    if (column === null || (gap && column % gap > dash[0] * devicePixelRatio)) return;
    const wide = Math.max(thick, Math.min(next - column, 3 * devicePixelRatio));
    if (isFilled) {
      ctx.fillStyle = fill;
      ctx.fillRect(column, low, wide, foot - low);
    }
    ctx.fillStyle = stroke;
    ctx.fillRect(column, low, thick, Math.max(thick, (isFilled ? low : high) - low));
  };
  for (let i = from; i <= to; i++) {
    if (ys[i] === undefined || ys[i] === null) continue;
    const here = Math.round(x(xs[i]));
    const at = Math.round(y(ys[i]));
    if (here !== column) {
      flush(here);
      column = here;
      [low, high] = last === null ? [at, at] : [Math.min(at, last), Math.max(at, last)];
    } else {
      low = Math.min(low, at);
      high = Math.max(high, at);
    }
    last = at;
  }
  flush(column === null ? 0 : column + thick);
  ctx.restore();
}

/** Where values lie on the canvas, worked out once for all of them. */
function placer(u, key) {
  const scale = u.scales[key];
  const isLog = scale.distr === 3;
  const number = isLog ? Math.log10 : (value) => value;
  const [min, max] = [number(scale.min), number(scale.max)];
  const { left, top, width, height } = u.bbox;
  const factor = (key === "x" ? width : height) / (max - min);
  return key === "x" ? (value) => left + (number(value) - min) * factor : (value) => top + height - (number(value) - min) * factor;
}
