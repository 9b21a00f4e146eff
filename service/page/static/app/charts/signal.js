/** The gradient-change signal of each worker, the threshold that can be dragged, and the steps that synchronised. */

import { call } from "../api.js";
import { aligned } from "../data/aligned.js";
import { canSteer } from "../data/session.js";
import { short } from "../format.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { complain, say } from "../parts/notices.js";
import { deltaLine } from "./delta_line.js";
import { paintTicks, paintTurns } from "./marks.js";
import { Plot } from "./plot.js";

/** So many workers have a line each; of more the largest signal is drawn, and the heat map tells them apart. */
const MANY = 16;

export function Signal({ data, view }) {
  const all = data.byWorker("sync/grad_delta");
  const workers = all.length > MANY ? [] : all;
  const list = workers.length ? workers : [data.of("sync/grad_delta")];
  const [asked, setAsked] = useState(null);
  const state = useRef({});
  state.current = { data, asked };
  const over = useRef(null);

  /** What the line shows: what was asked for, else the knob, else the threshold the strategy found by itself. */
  const delta = () => {
    const { data: now, asked: pending } = state.current;
    if (pending) return pending.value;
    const knob = latestDelta(now);
    if (typeof knob === "number") return knob;
    return knob === "Infinity" ? Infinity : now.of("sync/delta").last;
  };

  const turn = async (value) => {
    setAsked({ value, version: Infinity });
    try {
      const knobs = await call("GET", `/jobs/${data.id}/knobs`);
      const answer = await call("PATCH", `/jobs/${data.id}/knobs`, { body: { values: { delta: value }, expected_version: knobs.version } });
      setAsked({ value, version: answer.version, before: answer.before });
      say(`delta is to be ${typeof value === "number" ? short(value) : value}: in force with the next decision.`, undoing(answer.before));
    } catch (error) {
      setAsked(null);
      complain(error);
    }
  };
  const undoing = (before) => ({ action: { label: "Undo", run: () => turn(before.delta) } });

  useEffect(() => {
    if (!asked) return undefined;
    return data.version.subscribe(() => {
      const isInForce = data.turns.some((event) => event.knob_version >= asked.version);
      if (isInForce || data.job.peek()?.is_terminal) setAsked(null);
    });
  }, [asked]);

  const kind = view.kind.value;
  const turns = data.turns.filter((event) => "delta" in event.data.after);
  const last = turns[turns.length - 1];
  const canTurn = () => canSteer.value && !data.job.value?.is_terminal && "delta" in (data.job.value?.knobs ?? {});
  return html`<${Plot}
    id="chart-signal"
    title="Gradient change by worker"
    note="A step whose signal is above delta synchronises; ticks at the foot are the steps that did."
    lines=${list.map((one) => ({ label: one.worker === null ? "largest" : `worker ${one.worker}`, width: 1.2 }))}
    data=${(range) => aligned(workers.length ? data.byWorker("sync/grad_delta").slice(0, list.length) : list, kind, range)}
    values=${() => [delta() === Infinity ? null : delta()]}
    height=${280}
    foot=${0.08}
    view=${view}
    version=${data.version}
    marks=${(plot) => {
      paintTicks(plot, data.series.get("decision/sync"), kind);
      paintTurns(plot, data.turns, (event) => data.place(kind, event), true);
      over.current?.place();
    }}
    over=${(plot) => {
      over.current = deltaLine(plot, { value: delta, canTurn, turn });
      return () => over.current.end();
    }}
  >
    <p class="under-chart" data-marks=${turns.map((event) => event.step).join(",")}>
      ${asked ? html`<span>delta ${short(asked.value)} asked for, in force with the next decision …</span>` : last ? html`<span>delta ${word(last.data.after.delta)} in force since step ${last.step}${last.data.by ? `, turned by ${last.data.by}` : ""}</span>` : html`<span>${canTurn() ? "Drag the line to turn delta while the job runs." : ""}</span>`}
      ${last && !asked && canTurn() && html`<button class="small" onClick=${() => turn(last.data.before.delta)}>Undo: back to ${word(last.data.before.delta)}</button>`}
    </p>
  <//>`;
}

function latestDelta(data) {
  for (let n = data.turns.length - 1; n >= 0; n--) {
    const { after } = data.turns[n].data;
    if ("delta" in after) return after.delta;
  }
  return data.job.value?.knobs?.delta;
}

function word(value) {
  return typeof value === "number" ? short(value) : String(value);
}
