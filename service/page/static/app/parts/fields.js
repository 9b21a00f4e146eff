/** Fields of a form made from JSON Schema: one for whatever a specification may hold. */

import { put, shapeOf } from "../data/schema.js";
import { html } from "../lib.js";

const words = (name) => name.replaceAll("_", " ");

/** All fields of an object; `edit(path, value)` hears of changes, `errors` has what is wrong by path. */
export function Fields({ properties, root, catalogue, value, path, edit, errors }) {
  return Object.entries(properties)
    .filter(([name]) => name !== "kind")
    .map(([name, schema]) => html`<${Field} key=${name} name=${name} shape=${shapeOf(schema, root, catalogue)} description=${schema.description} catalogue=${catalogue} value=${value?.[name]} path=${[...path, name]} edit=${edit} errors=${errors} />`);
}

function Field({ name, shape, description, catalogue, value, path, edit, errors }) {
  const id = `field-${path.join("-")}`;
  const wrong = errors[path.join(".")];
  if (shape.kind === "family") return html`<${Family} name=${name} shape=${shape} catalogue=${catalogue} value=${value} path=${path} edit=${edit} errors=${errors} />`;
  if (shape.kind === "object") {
    return html`<fieldset class="nested"><legend>${words(name)}</legend><${Fields} properties=${shape.properties} root=${shape.root} catalogue=${catalogue} value=${value} path=${path} edit=${edit} errors=${errors} /></fieldset>`;
  }
  return html`<div class="field ${wrong ? "wrong" : ""}" title=${description}>
    <label for=${id}>${words(name)}</label><${Input} id=${id} shape=${shape} value=${value} onChange=${(given) => edit(path, given)} wrong=${wrong} />
    ${wrong && html`<p class="field-error" id="${id}-error">${wrong}</p>`}</div>`;
}

function Family({ name, shape, catalogue, value, path, edit, errors }) {
  const id = `field-${path.join("-")}`;
  const kind = value?.kind ?? "";
  const member = shape.members.find((one) => one.kind === (kind || shape.fallback?.kind));
  const choose = (chosen) => edit(path, chosen ? { kind: chosen } : undefined);
  const wrong = errors[path.join(".")] ?? errors[[...path, "kind"].join(".")];
  return html`<fieldset class="family"><legend>${words(name)}</legend>
    <div class="field ${wrong ? "wrong" : ""}"><label for=${id}>kind</label><select id=${id} value=${kind} onChange=${(event) => choose(event.target.value)}>
      <option value="">${shape.fallback ? `${shape.fallback.kind} (default)` : shape.isOptional ? "none" : "choose …"}</option>
      ${shape.members.map((one) => html`<option value=${one.kind}>${one.kind}</option>`)}</select>${wrong && html`<p class="field-error">${wrong}</p>`}</div>
    ${member?.summary && html`<p class="note">${member.summary}</p>`}
    ${kind && member && html`<${Fields} properties=${member.properties} root=${member.root} catalogue=${catalogue} value=${value} path=${path} edit=${edit} errors=${errors} />`}
  </fieldset>`;
}

function Input({ id, shape, value, onChange, wrong }) {
  const common = { id, "aria-invalid": wrong ? "true" : undefined, "aria-describedby": wrong ? `${id}-error` : undefined };
  if (shape.kind === "fixed") return html`<output ...${common}>${shape.fallback}</output>`;
  if (shape.kind === "flag") {
    return html`<input type="checkbox" ...${common} checked=${value ?? shape.fallback ?? false} onChange=${(event) => onChange(event.target.checked)} />`;
  }
  if (shape.kind === "choice") {
    return html`<select ...${common} value=${value ?? ""} onChange=${(event) => onChange(event.target.value || undefined)}>
      <option value="">${shape.fallback === undefined || shape.fallback === null ? "none" : `${shape.fallback} (default)`}</option>${shape.options.map((one) => html`<option value=${one}>${one}</option>`)}</select>`;
  }
  return html`<input ...${common} value=${shown(value)} placeholder=${shown(shape.fallback)} autocomplete="off" spellcheck="false" inputmode=${shape.kind === "number" && !shape.words?.length ? "decimal" : undefined} onInput=${(event) => onChange(read(event.target.value, shape))} />`;
}

function shown(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** What was typed as the value it stands for; what stands for none is sent as it is, and the service says what is wrong. */
function read(text, shape) {
  const word = text.trim();
  if (word === "") return undefined;
  if (shape.kind === "number") return Number.isNaN(Number(word)) ? word : Number(word);
  if (shape.kind === "list" || shape.kind === "map") {
    try {
      return JSON.parse(word);
    } catch {
      return word;
    }
  }
  return text;
}

export { put };
