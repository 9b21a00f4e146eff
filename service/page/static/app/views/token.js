/** Asks for a token: every route but health needs one. */

import { html, useState } from "../lib.js";
import { refusal, useToken } from "../token.js";

export function AskToken() {
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (text.trim()) useToken(text.trim());
  };
  return html`<main class="narrow">
    <h1>Your token</h1>
    ${refusal.value && html`<p class="problem" role="alert">${refusal.value}</p>`}
    <form class="card stack" onSubmit=${send}>
      <label for="token">Paste a token of this service</label>
      <input id="token" type="password" autocomplete="off" spellcheck="false" placeholder="rs_…" value=${text} onInput=${(event) => setText(event.target.value)} />
      <button class="primary">Look</button>
      <p class="note"><code>raysync serve</code> prints this page's address with the first token in it. Others: <code>raysync token create NAME --role viewer</code>. It is kept for this tab only.</p>
    </form>
  </main>`;
}
