/** The reader's token, kept for this tab only; `first.js` has taken it out of the address. */

import { signal } from "./lib.js";

const KEY = "raysync.token";

export const token = signal(sessionStorage.getItem(KEY) ?? "");

/** Why a token is asked for again; empty the first time. */
export const refusal = signal("");

addEventListener("raysync-token", () => useToken(sessionStorage.getItem(KEY) ?? ""));

export function useToken(text) {
  sessionStorage.setItem(KEY, text);
  refusal.value = "";
  token.value = text;
}

export function forgetToken(why = "") {
  sessionStorage.removeItem(KEY);
  refusal.value = why;
  token.value = "";
}
