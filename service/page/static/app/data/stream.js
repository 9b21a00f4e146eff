/** Server-sent events over `fetch`: with the token in a header, going on where they were after any interruption. */

import { address, headers } from "../api.js";
import { forgetToken, token } from "../token.js";

const FIRST_WAIT_MS = 400;
const LONGEST_WAIT_MS = 5000;
const SILENCE_MS = 35_000; // the service says something every 10 s

/**
 * Read a stream until it ends or is closed.
 *
 * `onMessage(name, data)` gets each message; `onLink(state)` hears "open", "lost", "back" and "ended".
 * Return a function that closes it.
 */
export function follow(path, query, { onMessage, onLink = () => {} }) {
  const closing = new AbortController();
  let last = null;
  let wait = FIRST_WAIT_MS;
  let wasOpen = false;

  const attempt = async () => {
    const silent = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MS);
    };
    heard();
    try {
      const answer = await fetch(address(path, query), {
        headers: headers({ Accept: "text/event-stream", ...(last === null ? {} : { "Last-Event-ID": last }) }),
        cache: "no-store",
        signal: AbortSignal.any([closing.signal, silent.signal]),
      });
      if (answer.status === 204) return "ended";
      if (answer.status === 401) {
        forgetToken("The service does not take this token (any more).");
        return "ended";
      }
      if (!answer.ok) return answer.status === 404 ? "ended" : "lost";
      onLink(wasOpen ? "back" : "open");
      [wasOpen, wait] = [true, FIRST_WAIT_MS];
      for await (const message of messages(answer.body, heard)) {
        if (message.id !== null) last = message.id;
        if (message.data) onMessage(message.name, JSON.parse(message.data));
        if (message.name === "end") return "ended";
      }
      return "lost";
    } catch {
      return "lost";
    } finally {
      clearTimeout(timer);
    }
  };

  (async () => {
    while (!closing.signal.aborted && token.value) {
      const outcome = await attempt();
      if (closing.signal.aborted) return;
      onLink(outcome);
      if (outcome === "ended") return;
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(LONGEST_WAIT_MS, 1.7 * wait);
    }
  })();
  return () => closing.abort();
}

/** The messages of a body: fields up to an empty line, however the network cut them. */
async function* messages(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const message = parsed(block);
        if (message) yield message;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const message = { id: null, name: "message", data: "" };
  let isAny = false;
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    const field = line.slice(0, colon);
    if (field === "id") message.id = value;
    else if (field === "event") message.name = value;
    else if (field === "data") message.data += message.data ? `\n${value}` : value;
    isAny = true;
  }
  return isAny ? message : null;
}
