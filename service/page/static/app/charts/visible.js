/** A painter that works only while its element can be seen, and catches up when it comes into view. */

import { effect } from "../lib.js";
import { palette } from "../theme.js";
import { paint, unpaint } from "./frames.js";

/**
 * Paint `element` with `painter` whenever `version` changes, its width does, or the colours do.
 * Return a function that ends it.
 */
export function whileVisible(element, version, painter, { onColours = painter } = {}) {
  let isSeen = true;
  let isStale = false;
  const due = () => (isSeen ? paint(painter) : (isStale = true));
  const seen = new IntersectionObserver((entries) => {
    isSeen = entries[entries.length - 1].isIntersecting;
    if (isSeen && isStale) {
      isStale = false;
      paint(painter);
    }
  });
  seen.observe(element);
  const sized = new ResizeObserver(due);
  sized.observe(element);
  let known = palette.value;
  const stop = effect(() => {
    version.value;
    if (palette.value !== known) {
      known = palette.value;
      onColours();
    }
    due();
  });
  return () => {
    stop();
    seen.disconnect();
    sized.disconnect();
    unpaint(painter);
  };
}
