/** Stages and waits of a session's attempts, and its calls, on one axis of time. */

import { s, h } from "../dom.js";
import { clock, duration, instant } from "../format.js";
import { linear } from "../charts/scale.js";
import { table } from "../table.js";

const WIDTH = 900;
const LEFT = 120;
const LINE = 26;
const TOP = 8;
const WELL = new Set(["finished", "COMPLETED", "handed_back"]);

/**
 * @param {any} document of `GET /api/sessions/ID`
 * @returns {HTMLElement}
 */
export function timelineView(document) {
  const stages = (document.timeline ?? []).map(withLoss);
  const ends = stages.flatMap((one) => [one.queued_at, one.claimed_at, one.finished_at]).concat(document.calls.flatMap((call) => [call.received_at, call.completed_at]));
  const times = ends.filter((at) => at !== null && at !== undefined);
  if (document.row.ended_at === null && times.length > 0) times.push(Date.now()); // it goes on
  if (times.length === 0) return h("p", { class: "quiet" }, "Nothing has happened yet.");
  const [from, to] = [Math.min(...times), Math.max(...times)];
  return h("div", { class: "timeline" }, drawing(document, stages, from, to), stagesTable(stages));
}

/** A stage without an outcome was lost if a later attempt exists; it ended before that attempt's first record. */
function withLoss(one, _, all) {
  if (one.outcome !== null) return one;
  const later = all.filter(({ attempt }) => attempt > one.attempt).flatMap((next) => [next.queued_at, next.claimed_at, next.finished_at]);
  const times = later.filter((at) => at !== null);
  return times.length === 0 ? one : { ...one, outcome: "lost", lost_at: Math.min(...times) };
}

function drawing(document, stages, from, to) {
  const rows = [...stages.map((one) => ({ name: `${one.stage}${one.attempt > 1 ? `, attempt ${one.attempt}` : ""}`, one })), { name: "model calls", calls: document.calls }];
  const height = TOP + rows.length * LINE + 24;
  const x = linear(from, Math.max(to, from + 1), LEFT, WIDTH - 10);
  const width = (a, b) => Math.max(1.5, x(b) - x(a));
  const marks = rows.flatMap(({ name, one, calls }, i) => {
    const y = TOP + i * LINE;
    const label = s("text", { class: "tick", x: 0, y: y + 15 }, name);
    if (calls) {
      return [label, ...calls.map((call) => s("rect", { class: call.outcome === "answered" ? "stage-call" : "stage-lost", x: x(call.received_at), y: y + 4, width: width(call.received_at, call.completed_at), height: 14 }, s("title", null, `call ${call.number}: ${duration(call.latency_ms)}`)))];
    }
    const claimed = one.claimed_at ?? one.finished_at ?? one.lost_at ?? to;
    const found = [label];
    if (one.queued_at !== null) found.push(s("rect", { class: "stage-wait", x: x(one.queued_at), y: y + 8, width: width(one.queued_at, claimed), height: 6 }, s("title", null, `waited ${duration(claimed - one.queued_at)}`)));
    if (one.claimed_at !== null) {
      const end = one.finished_at ?? one.lost_at ?? to;
      const isLost = one.outcome !== null && !WELL.has(one.outcome);
      found.push(s("rect", { class: isLost ? "stage-lost" : "stage-work", x: x(one.claimed_at), y: y + 4, width: width(one.claimed_at, end), height: 14 }, s("title", null, `worked ${duration(end - one.claimed_at)}`)));
    }
    return found;
  });
  const y = height - 6;
  const axis = [
    s("text", { class: "tick", x: LEFT, y }, clock(from, true)),
    s("text", { class: "tick middle", x: (LEFT + WIDTH) / 2, y }, `+${duration((to - from) / 2)}`),
    s("text", { class: "tick end", x: WIDTH - 10, y }, `+${duration(to - from)}`),
  ];
  const summary = `Timeline of ${duration(to - from)}: ${rows.map((row) => row.name).join(", ")}. The table below has the figures.`;
  return s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": summary, class: "timeline-drawing" }, marks, axis);
}

function stagesTable(stages) {
  const rows = stages.map((one) => [
    one.attempt,
    one.stage,
    instant(one.queued_at),
    difference(one.queued_at, one.claimed_at),
    difference(one.claimed_at, one.finished_at),
    one.worker ? h("span", { class: "id" }, one.worker) : "",
    one.outcome ?? "",
  ]);
  return table("Stages and waits", [">attempt", "stage", ">queued", ">waited", ">worked", "worker", "outcome"], rows, "No stage was recorded: this session was opened without a worker, or its facts have left the log.");
}

function difference(from, to) {
  return from === null || to === null ? duration(null) : duration(to - from);
}
