/** What the page is drawn with, in one place: templates without a compiler, signals, and effects. */

import { h, render } from "../vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { batch, computed, effect, signal } from "../vendor/signals.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { batch, computed, effect, render, signal, useEffect, useLayoutEffect, useMemo, useRef, useState };
