/** Running totals as what a step added to them, over a few steps each; grown as its source grows, never worked out twice. */

import { Series } from "./series.js";

/** So many steps a value is the mean of: a strategy that sends at every tenth step sends nothing at the others. */
export const WINDOW = 50;

const kept = new WeakMap();

/** What a step adds to a total of `data`; of the compression, to what all that was sent would have been uncompressed. */
export function rates(data, name) {
  const source = data.of(name);
  let found = kept.get(source);
  if (found?.epoch !== source.epoch) {
    found = { series: new Series(name, null, "bytes"), epoch: source.epoch, length: 0, from: 0 };
    kept.set(source, found);
  }
  const total = (i) => (name === "comm/compression" ? source.value[i] * source.bytes[i] : source.value[i]);
  for (let i = found.length; i < source.length; i++) {
    while (found.from < i - 1 && source.step[i] - source.step[found.from + 1] >= WINDOW) found.from++;
    if (source.step[i] < source.step[found.from]) found.from = i; // it went back to a checkpoint
    const [steps, added] = [source.step[i] - source.step[found.from], total(i) - total(found.from)];
    if (steps > 0 && added >= 0) found.series.push(source.step[i], source.time[i], source.bytes[i], added / steps);
  }
  found.length = source.length;
  return found.series;
}
