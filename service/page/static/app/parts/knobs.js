/** All knobs of a job as a form: turned together, at one step, if nobody else turned them meanwhile. */

import { call } from "../api.js";
import { canSteer, catalogue } from "../data/session.js";
import { short } from "../format.js";
import { html, useState } from "../lib.js";
import { complain, say } from "./notices.js";

const ELSEWHERE = new Set(["pause", "workers"]);

export function Knobs({ data }) {
  const job = data.job.value;
  const [edits, setEdits] = useState({});
  const values = current(data);
  const names = Object.keys(values).filter((name) => !ELSEWHERE.has(name)).sort();
  const changes = Object.fromEntries(Object.entries(edits).map(([name, text]) => [name, parsed(text)]).filter(([name, value]) => value !== values[name]));
  const may = canSteer.value && !job.is_terminal;
  if (!names.length) return null;

  const turn = async (wanted) => {
    const knobs = await call("GET", `/jobs/${job.id}/knobs`);
    const answer = await call("PATCH", `/jobs/${job.id}/knobs`, { body: { values: wanted, expected_version: knobs.version } });
    setEdits({});
    const undo = { action: { label: "Undo", run: () => turn(answer.before).catch(complain) } };
    say(`${Object.keys(wanted).join(", ")} turned: in force with the next decision.`, undo);
  };
  const send = (event) => {
    event.preventDefault();
    turn(changes).catch(complain);
  };
  return html`<form class="knobs" onSubmit=${send}>
    ${names.map((name) => html`<label key=${name} title=${catalogue.value?.knobs[name] ?? ""}><span>${name}</span>
      ${may ? html`<input name=${name} value=${edits[name] ?? text(values[name])} onInput=${(event) => setEdits({ ...edits, [name]: event.target.value })} autocomplete="off" />` : html`<output>${text(values[name]) || "–"}</output>`}</label>`)}
    ${may && html`<button class="primary" disabled=${!Object.keys(changes).length}>Turn</button>`}
  </form>`;
}

/** The knobs as they are now: those of the job, and every turn since. */
function current(data) {
  const values = { ...data.job.value.knobs };
  for (const event of data.turns) Object.assign(values, event.data.after);
  return values;
}

function text(value) {
  return typeof value === "number" ? short(value, 6).replaceAll(",", "") : value === null ? "" : String(value);
}

function parsed(text) {
  const word = text.trim();
  if (word === "auto" || word === "Infinity") return word;
  if (word === "∞" || word === "inf") return "Infinity";
  if (word === "") return null;
  return Number.isNaN(Number(word)) ? word : Number(word);
}
