/** Painting once per animation frame: whatever is due waits in line, and no frame is spent on more than fits it. */

const BUDGET_MS = 9;

const due = new Set();
let isAsked = false;

/** Have `paint` called in the next frame that has room; asking twice is asking once. */
export function paint(painter) {
  due.add(painter);
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(run);
}

export function unpaint(painter) {
  due.delete(painter);
}

function run() {
  isAsked = false;
  const start = performance.now();
  for (const painter of due) {
    due.delete(painter);
    painter();
    if (performance.now() - start > BUDGET_MS) break;
  }
  if (due.size) {
    isAsked = true;
    requestAnimationFrame(run);
  }
}
