/** Who reads this page, and what the service can do. */

import { get } from "../api.js";
import { computed, signal } from "../lib.js";
import { token } from "../token.js";

export const me = signal(null);
export const catalogue = signal(null);
export const canSteer = computed(() => me.value?.can.includes("steer") ?? false);
export const canRemove = computed(() => me.value?.can.includes("remove") ?? false);

/** Ask who the token's owner is, whenever there is another token; what a job may be made of, once. */
export function startSession() {
  token.subscribe(async (now) => {
    me.value = null;
    for (let wait = 500; now && now === token.value && me.value === null; wait = Math.min(5000, 2 * wait)) {
      try {
        me.value = await get("/me");
        catalogue.value ??= await get("/components");
      } catch (error) {
        if (error.status !== 0 && error.status < 500) return;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  });
}

/** The sentence that says what a metric is. */
export function summaryOf(name) {
  return catalogue.value?.metrics.find((metric) => metric.name === name)?.summary ?? "";
}
