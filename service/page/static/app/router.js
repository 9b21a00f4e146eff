/** Where the page is: the part of its address after the number sign, such as `#/compare?jobs=a,b`. */

import { computed, signal } from "./lib.js";

const raw = signal(location.hash);
addEventListener("hashchange", () => (raw.value = location.hash));

export const route = computed(() => {
  const [path, query] = raw.value.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query ?? "") };
});

/** A part of the address as it was meant; one that somebody cut in the middle of a sign stays as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function go(address) {
  location.hash = address;
}

/** Change one thing in the query without a step in the browser's history; empty takes it out. */
export function note(name, value) {
  noteAll({ [name]: value });
}

export function noteAll(changes) {
  const [path, query] = location.hash.split("?");
  const found = new URLSearchParams(query ?? "");
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === undefined) found.delete(name);
    else found.set(name, value);
  }
  const text = found.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  history.replaceState(null, "", `${path || "#/"}${text ? `?${text}` : ""}`);
  raw.value = location.hash;
}
