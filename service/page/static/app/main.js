/** The page: which view is shown, and what is around it. */

import { html, render, useEffect } from "./lib.js";
import { me, startSession } from "./data/session.js";
import { Notices } from "./parts/notices.js";
import { route } from "./router.js";
import { nextTheme, startTheme, theme } from "./theme.js";
import { forgetToken, token } from "./token.js";
import { Compare } from "./views/compare.js";
import { Job } from "./views/job.js";
import { Jobs } from "./views/jobs.js";
import { Latest } from "./views/latest.js";
import { Mesh } from "./views/mesh.js";
import { Studies } from "./views/studies.js";
import { Study } from "./views/study.js";
import { Submit } from "./views/submit.js";
import { AskToken } from "./views/token.js";

/** By the first word of the address; a new view is a file in `views` and a line here. */
const VIEWS = {
  "": { show: () => html`<${Jobs} />`, title: () => "Jobs" },
  jobs: { show: ([id]) => html`<${Job} key=${id} id=${id} />`, title: ([id]) => id },
  latest: { show: () => html`<${Latest} />`, title: () => "The latest job" },
  mesh: { show: ([id]) => html`<${Mesh} key=${id} id=${id} />`, title: ([id]) => `Mesh of ${id}` },
  compare: { show: () => html`<${Compare} />`, title: () => "Compare" },
  studies: { show: ([id]) => (id ? html`<${Study} key=${id} id=${id} />` : html`<${Studies} />`), title: ([id]) => id ?? "Studies" },
  submit: { show: () => html`<${Submit} />`, title: () => "New job" },
};
const NAVIGATION = [["", "Jobs"], ["compare", "Compare"], ["studies", "Studies"]];

function App() {
  const [first = "", ...rest] = route.value.parts;
  const view = VIEWS[first] ?? VIEWS[""];
  const title = view.title(rest);
  useEffect(() => {
    document.title = `${title} · raysync`;
  }, [title]);
  useEffect(() => {
    scrollTo(0, 0);
  }, [first, rest[0]]);
  const isHere = (name) => (first === name || (name === "" && ["jobs", "latest", "mesh", "submit"].includes(first)) ? "page" : undefined);
  return html`<a class="skip" href="#main" onClick=${toMain}>Skip to content</a>
    <header class="bar">
      <a class="brand" href="#/" aria-label="raysync: all jobs"><img src="page/icon.svg" alt="" width="26" height="26" /><span class="word">raysync</span></a>
      ${token.value && html`<nav aria-label="Views">${NAVIGATION.map(([name, words]) => html`<a href="#/${name}" aria-current=${isHere(name)}>${words}</a>`)}</nav>`}
      <span class="grow"></span>
      ${me.value && html`<span class="who" title="What this token may do: ${me.value.can.join(", ")}">${me.value.name} · ${me.value.role}</span>`}
      <button class="quiet" onClick=${nextTheme} title="Colours: automatic, light, dark">${{ auto: "◐", light: "☀", dark: "☾" }[theme.value]} <span class="word">${theme.value}</span></button>
      ${token.value && html`<button class="quiet" onClick=${() => forgetToken()}>Leave</button>`}
    </header>
    <div id="main" tabindex="-1">${token.value ? view.show(rest) : html`<${AskToken} />`}</div>
    <${Notices} />`;
}

function toMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

startTheme();
startSession();
const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);
