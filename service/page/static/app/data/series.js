/** One metric of one job or worker as columns that grow; what is old is merged, its smallest and largest kept. */

/** A power of two, as columns double until then: from 8,192 points on a series takes no more memory. */
const MAX_POINTS = 16_384;
const COLUMNS = ["step", "time", "bytes", "value"];

export class Series {
  constructor(name, worker = null, unit = "") {
    this.name = name;
    this.worker = worker;
    this.unit = unit;
    this.length = 0;
    this.min = Infinity;
    this.max = -Infinity;
    /** Whether steps only go up: after a recovery they come again. */
    this.isOrdered = true;
    /** Goes up when points were merged: whoever keeps something made of them begins anew. */
    this.epoch = 0;
    for (const column of COLUMNS) this[column] = new Float64Array(512);
  }

  get last() {
    return this.length ? this.value[this.length - 1] : null;
  }

  push(step, time, bytes, value) {
    if (value === null || !Number.isFinite(value)) return;
    if (this.length === this.value.length) this.#makeRoom();
    const at = this.length++;
    if (at && step < this.step[at - 1]) this.isOrdered = false;
    this.step[at] = step;
    this.time[at] = time;
    this.bytes[at] = bytes;
    this.value[at] = value;
    if (value < this.min) this.min = value;
    if (value > this.max) this.max = value;
  }

  /** The place of the last point at or before `x`; -1 if there is none. */
  before(kind, x) {
    const xs = this[kind];
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  #makeRoom() {
    if (this.length >= MAX_POINTS) return this.#merge();
    for (const column of COLUMNS) {
      const wider = new Float64Array(Math.min(MAX_POINTS, 2 * this.length));
      wider.set(this[column]);
      this[column] = wider;
    }
  }

  /** Of every four points of the older half the smallest and the largest stay. */
  #merge() {
    this.epoch++;
    const half = (this.length >> 3) << 2;
    let to = 0;
    for (let from = 0; from < half; from += 4) {
      let low = from;
      let high = from;
      for (let i = from + 1; i < from + 4; i++) {
        if (this.value[i] < this.value[low]) low = i;
        if (this.value[i] >= this.value[high]) high = i;
      }
      for (const kept of low < high ? [low, high] : low > high ? [high, low] : [low]) {
        for (const column of COLUMNS) this[column][to] = this[column][kept];
        to++;
      }
    }
    for (const column of COLUMNS) this[column].copyWithin(to, half, this.length);
    this.length -= half - to;
  }
}
