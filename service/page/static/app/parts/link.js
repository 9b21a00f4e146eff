/** Whether what is shown is live, and what happened if it was not for a while. */

import { html } from "../lib.js";
import { say } from "./notices.js";

const WORDS = { opening: "connecting …", open: "live", back: "live", lost: "reconnecting …", ended: "ended" };

export function Link({ state }) {
  return html`<span class="link ${state}" role="status">${WORDS[state] ?? state}</span>`;
}

/** Say so when a stream was interrupted and when it goes on; return a function for its `onLink`. */
export function spoken(set, describe = () => "") {
  let isLost = false;
  return (state) => {
    set(state);
    if (state === "lost" && !isLost) {
      isLost = true;
      say("The service does not answer; trying again until it does.", { tone: "held" });
    } else if (state === "back" && isLost) {
      isLost = false;
      say(`Reconnected${describe()}.`, { tone: "good" });
    }
  };
}
