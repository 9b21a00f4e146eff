/** Numbers, times and words as people read them. */

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

export function size(bytes) {
  if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) return "–";
  const power = bytes < 1 ? 0 : Math.min(SIZES.length - 1, Math.floor(Math.log10(bytes) / 3));
  return `${short(bytes / 1000 ** power)} ${SIZES[power]}`;
}

/** Three digits that matter, or what stands for nothing. */
export function short(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const large = Math.abs(value);
  if (large !== 0 && (large < 1e-3 || large >= 1e7)) return value.toExponential(digits - 1).replace("e+", "e");
  if (large >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

export function times(value) {
  return value === null || value === undefined ? "–" : `${short(value)}×`;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 1) return `${short(value * 1000)} ms`;
  if (value < 100) return `${short(value)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 100) return `${minutes} min ${Math.round(value % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function ago(moment, now = Date.now()) {
  if (!moment) return "–";
  const past = Math.max(0, (now - Date.parse(moment)) / 1000);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return new Date(moment).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
}

/** A metric by its name, as a figure. */
export function figure(name, value, unit) {
  if (unit === "bytes" || name.startsWith("comm/bytes")) return size(value);
  if (name === "eval/accuracy") return percent(value);
  if (unit === "s") return seconds(value);
  if (name === "comm/compression") return times(value);
  return short(value);
}
