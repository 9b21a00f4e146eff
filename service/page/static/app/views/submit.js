/** A new job: fields made from the service's own schemas, checked by the service while they are filled in. */

import { call, get } from "../api.js";
import { EXAMPLES } from "../data/examples.js";
import { resolved } from "../data/schema.js";
import { canSteer, catalogue, me } from "../data/session.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { Fields, put } from "../parts/fields.js";
import { complain, say } from "../parts/notices.js";
import { go, link } from "../router.js";

const CHECK_MS = 250;
const MAIN = ["name", "task", "strategy", "compression", "optimizer", "scale", "budget", "eval"];
let draft = null; // what was begun, or handed over by another view

/** Open the form with a specification, such as a study's pick. */
export function begin(spec) {
  draft = spec;
  go("#/submit");
}

export function Submit() {
  if (!me.value) return html`<main><h1>New job</h1><p class="loading">Loading …</p></main>`;
  if (canSteer.value) return html`<${Writing} />`;
  return html`<main><h1>New job</h1><p class="nothing">This token may look, not start jobs: that takes an operator's.</p></main>`;
}

function Writing() {
  const first = draft ?? Object.values(EXAMPLES)[0];
  const [spec, setSpec] = useState(first);
  const [text, setText] = useState(JSON.stringify(first, null, 2));
  const [document, setDocument] = useState(null);
  useEffect(() => void get("/../../openapi.json").then(setDocument, complain), []);
  const take = (next) => {
    draft = next;
    setSpec(next);
    setText(JSON.stringify(next, null, 2));
  };
  const typed = (now) => {
    setText(now);
    try {
      draft = JSON.parse(now);
      setSpec(draft);
    } catch {
      setSpec(null);
    }
  };
  const verdict = useVerdict(spec);
  const send = async (event) => {
    event.preventDefault();
    try {
      const job = await call("POST", "/jobs", { body: { spec } });
      draft = null;
      say(`${job.id} is submitted.`, { tone: "good" });
      go(link("jobs", job.id));
    } catch (error) {
      complain(error);
    }
  };
  const schema = document && resolved({ $ref: "#/components/schemas/JobSpec" }, document);
  return html`<main><form class="submit" onSubmit=${send}>
    <header class="top"><h1>New job</h1><span class="grow"></span>
      <label class="inline">Start from <select onChange=${(event) => take(EXAMPLES[event.target.value])}>${Object.keys(EXAMPLES).map((name) => html`<option value=${name}>${name}</option>`)}</select></label></header>
    <div class="halves">
      <section class="card form" aria-label="Fields">${schema && spec && typeof spec === "object" ? html`<${Form} schema=${schema} root=${document} spec=${spec} take=${take} errors=${verdict.errors} />` : html`<p class="loading">${spec ? "Loading …" : "The text is not JSON yet; fields come back when it is."}</p>`}</section>
      <section class="card side" aria-label="Specification">
        <label for="spec-text">The same as JSON</label>
        <textarea id="spec-text" rows="22" spellcheck="false" value=${text} onInput=${(event) => typed(event.target.value)}></textarea>
        <${Verdict} verdict=${verdict} />
        <button class="primary" disabled=${!verdict.isGood}>Submit</button>
      </section>
    </div></form></main>`;
}

function Form({ schema, root, spec, take, errors }) {
  const edit = (path, value) => take(put(spec, path, value));
  const pick = (isMain) => Object.fromEntries(Object.entries(schema.properties).filter(([name]) => MAIN.includes(name) === isMain && name !== "eval_every"));
  const fields = (properties) => html`<${Fields} properties=${properties} root=${root} catalogue=${catalogue.value} value=${spec} path=${[]} edit=${edit} errors=${errors} />`;
  return html`<div class="fields">${fields(pick(true))}</div><details><summary>More</summary><div class="fields">${fields(pick(false))}</div></details>`;
}

/** What the service says of a specification: asked a moment after the last change, the newest answer counts. */
function useVerdict(spec) {
  const [verdict, setVerdict] = useState({ isGood: false, words: "Checking …", errors: {}, advice: [] });
  const asked = useRef(0);
  const key = JSON.stringify(spec);
  useEffect(() => {
    const mine = ++asked.current;
    const tell = (found) => mine === asked.current && setVerdict({ errors: {}, advice: [], isGood: false, ...found });
    if (spec === null) return tell({ words: "This is not JSON." });
    const timer = setTimeout(async () => {
      try {
        const answer = await call("POST", "/jobs", { body: { spec, dry_run: true } });
        tell({ isGood: true, words: "The service would take this job.", advice: answer.advice ?? [] });
      } catch (error) {
        const errors = Object.fromEntries(error.fields.map(({ field, message }) => [field.replace(/^spec\./, ""), message]));
        tell({ words: error.message, errors });
      }
    }, CHECK_MS);
    return () => clearTimeout(timer);
  }, [key]);
  return verdict;
}

function Verdict({ verdict }) {
  return html`<div class="verdict ${verdict.isGood ? "good" : "bad"}" role="status" aria-live="polite"><p>${verdict.words}</p>
    ${Object.entries(verdict.errors).map(([field, message]) => html`<p><code>${field}</code> ${message}</p>`)}
    ${verdict.advice.map((words) => html`<p class="advice">${words}</p>`)}</div>`;
}
