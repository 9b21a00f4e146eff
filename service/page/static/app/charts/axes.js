/** The three x axes every chart of a job can have, and what is shown of them. */

import { seconds, short, size } from "../format.js";
import { signal } from "../lib.js";

export const AXES = {
  step: { label: "steps", words: "step", format: short },
  time: { label: "time", words: "time since the start", format: seconds },
  bytes: { label: "bytes sent", words: "bytes sent", format: size },
};

/** A view as the query of an address has it. */
export function viewOf(query) {
  return new View(query.get("x") ?? "step", query.get("log") === "1", query.get("logx") === "1");
}

/** The same for the address: what is as usual is left out. */
export function queryOf(view) {
  const usual = { x: view.kind.value === "step" ? "" : view.kind.value };
  return { ...usual, log: view.isLog.value ? "1" : "", logx: view.isLogX.value ? "1" : "" };
}

/** What several charts share: the axis, whether values are on a log scale, and the range looked at. */
export class View {
  constructor(kind = "step", isLog = false, isLogX = false) {
    this.kind = signal(kind in AXES ? kind : "step");
    this.isLog = signal(isLog);
    /** The axis itself by its logarithm: a job that sends a hundredth has a hundredth of the axis otherwise. */
    this.isLogX = signal(isLogX);
    /** `[from, to]` on the axis, or null for all there is; it stays while data comes in. */
    this.range = signal(null);
  }

  turnTo(kind) {
    this.range.value = null;
    this.kind.value = kind;
  }

  /** Look at a part, `by` times as wide as now, or moved by a share of its width; `all` is all there is now. */
  zoom(by, shift, all) {
    const [from, to] = this.range.value ?? all;
    const [middle, half] = [(from + to) / 2 + shift * (to - from), (by * (to - from)) / 2];
    const found = [Math.max(all[0], middle - half), Math.min(all[1], middle + half)];
    const isAll = found[0] <= all[0] && found[1] >= all[1];
    this.range.value = isAll || found[1] <= found[0] ? null : found;
  }
}
