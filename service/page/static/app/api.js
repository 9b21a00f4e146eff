/** The service's REST interface, as any other client has it. */

import { forgetToken, token } from "./token.js";

const ROOT = "api/v1";

/** What the service answered instead of what was asked for: its own sentence, and the fields that are wrong. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? problem?.title ?? `the service answered ${status}`);
    this.status = status;
    this.fields = problem?.errors ?? [];
  }
}

export function headers(extra = {}) {
  return { Authorization: `Bearer ${token.value}`, Accept: "application/json", ...extra };
}

export function address(path, query = {}) {
  const given = Object.entries(query).flatMap(([name, value]) =>
    Array.isArray(value) ? value.map((one) => [name, one]) : value === undefined || value === "" ? [] : [[name, value]],
  );
  const text = new URLSearchParams(given).toString();
  return `${ROOT}${path}${text ? `?${text}` : ""}`;
}

/** Send a request; return the answer's JSON, or throw an `ApiError`. */
export async function call(method, path, { query, body, signal, etag } = {}) {
  const sent = token.value;
  const options = { method, signal, cache: "no-store", headers: headers(etag ? { "If-Match": etag } : {}) };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(address(path, query), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "the service does not answer now" });
  }
  if (answer.status === 401 && sent === token.value) forgetToken("The service does not take this token (any more).");
  const text = await answer.text();
  const data = text && answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text;
  if (!answer.ok) throw new ApiError(answer.status, data);
  return data;
}

/** Fetch a file with the reader's token and hand it to the browser under a name. */
export async function download(path, name) {
  const answer = await fetch(address(path), { headers: headers({ Accept: "*/*" }), cache: "no-store" });
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, body, query) => call("POST", path, { body, query });
