/** Several series on one axis, as uPlot wants them, and no more points than a screen can show. */

/** So many points of a series are drawn at most. */
export const ON_SCREEN = 2000;

/** Return `[xs, ys, ys, …]` of what lies in the range; beyond `limit` points smallest and largest of each bucket. */
export function aligned(list, kind, range = null, limit = ON_SCREEN) {
  const views = list.map((series) => view(series, kind, range));
  const most = Math.max(0, ...views.map((one) => one.to - one.from));
  if (most === 0) return [[], ...list.map(() => [])];
  return most <= limit ? exact(views) : bucketed(views, limit);
}

function view(series, kind, range) {
  const { xs, ys } = series.isOrdered || kind !== "step" ? { xs: series[kind], ys: series.value } : sorted(series);
  const from = range ? Math.max(0, first(xs, series.length, range[0]) - 1) : 0;
  const to = range ? Math.min(series.length, first(xs, series.length, range[1]) + 1) : series.length;
  return { xs, ys, from, to };
}

/** The place of the first x that is not below; with `isAbove`, of the first that is above. */
function first(xs, length, x, isAbove = false) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isAbove ? xs[middle] <= x : xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** So many new points are put in one by one; of more all are sorted. */
const FEW = 64;

const byStep = new WeakMap();

/** A series in the order of its steps, of equal ones the older first; kept, and grown as the series grows. */
function sorted(series) {
  let found = byStep.get(series);
  if (found?.epoch !== series.epoch || series.length - found.length > FEW) byStep.set(series, (found = inOrder(series)));
  while (found.length < series.length) insert(found, series.step[found.length], series.value[found.length]);
  return found;
}

function inOrder({ epoch, length, step, value }) {
  const order = Array.from({ length }, (_, i) => i).sort((a, b) => step[a] - step[b] || a - b);
  const found = { epoch, length, xs: new Float64Array(value.length + FEW), ys: new Float64Array(value.length + FEW) };
  order.forEach((i, n) => ([found.xs[n], found.ys[n]] = [step[i], value[i]]));
  return found;
}

function insert(found, x, y) {
  if (found.length === found.xs.length) {
    for (const column of ["xs", "ys"]) {
      const wider = new Float64Array(2 * found.length);
      wider.set(found[column]);
      found[column] = wider;
    }
  }
  const at = first(found.xs, found.length, x, true);
  for (const [column, value] of [["xs", x], ["ys", y]]) {
    found[column].copyWithin(at + 1, at, found.length);
    found[column][at] = value;
  }
  found.length++;
}

function exact(views) {
  const all = new Float64Array(views.reduce((sum, one) => sum + one.to - one.from, 0));
  let at = 0;
  for (const { xs, from, to } of views) {
    all.set(xs.subarray(from, to), at);
    at += to - from;
  }
  if (views.length > 1) all.sort();
  const xs = [];
  for (const x of all) if (xs.length === 0 || x !== xs[xs.length - 1]) xs.push(x);
  return [xs, ...views.map((one) => along(xs, one))];
}

/** The values of a series at all places of the axis; of several at one place the last. */
function along(places, { xs, ys, from, to }) {
  const found = new Array(places.length).fill(undefined);
  let i = from;
  for (let n = 0; n < places.length && i < to; n++) {
    while (i < to && xs[i] === places[n]) found[n] = ys[i++];
  }
  return found;
}

function bucketed(views, limit) {
  let low = Infinity;
  let high = -Infinity;
  for (const { xs, from, to } of views) {
    if (to > from) {
      low = Math.min(low, xs[from]);
      high = Math.max(high, xs[to - 1]);
    }
  }
  // A width that is a power of two, counted from zero: buckets stay where they are while the axis grows.
  const width = high > low ? 2 ** Math.ceil(Math.log2((2 * (high - low)) / limit)) : 1;
  const start = Math.floor(low / width);
  const count = Math.floor(high / width) - start + 1;
  const xs = new Array(2 * count);
  for (let k = 0; k < count; k++) {
    xs[2 * k] = (start + k + 0.25) * width;
    xs[2 * k + 1] = (start + k + 0.75) * width;
  }
  return [xs, ...views.map((one) => extremes(one, width, start, count))];
}

function extremes({ xs, ys, from, to }, width, start, count) {
  const found = new Array(2 * count).fill(undefined);
  let i = from;
  while (i < to) {
    const k = Math.floor(xs[i] / width) - start;
    let low = i;
    let high = i;
    for (i++; i < to && Math.floor(xs[i] / width) - start === k; i++) {
      if (ys[i] < ys[low]) low = i;
      if (ys[i] >= ys[high]) high = i;
    }
    found[2 * k] = ys[Math.min(low, high)];
    if (low !== high) found[2 * k + 1] = ys[Math.max(low, high)];
  }
  return found;
}
