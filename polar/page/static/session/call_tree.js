/** The tree of a session's calls: continuations below one another, forks and side calls a step further in. */

import { h } from "../dom.js";
import { duration, short } from "../format.js";
import { href } from "../router.js";

/**
 * @param {import("./story.js").Story} story
 * @param {number|null} number of the call that is shown
 * @returns {HTMLElement}
 */
export function callTree(story, number) {
  const rows = story.tree().map(({ call, depth }) => row(story, call, depth, call.number === number));
  if (rows.length === 0) return h("p", { class: "quiet pad" }, "No call yet.");
  return h("ol", { class: "tree" }, rows);
}

function row(story, call, depth, isShown) {
  const isBad = call.outcome !== "answered";
  const marks = [
    call.kind !== "main" && h("span", { class: "chip mute" }, call.kind),
    call.branch && call.branch !== "root" && h("span", { class: "chip warn", title: "why it doesn't simply continue its parent" }, call.branch),
    isBad && h("span", { class: "chip bad" }, call.error_code ?? call.outcome),
    call.masked && h("span", { class: "chip warn" }, "masked"),
  ];
  const link = h(
    "a",
    { href: href(["sessions", story.document.session_id, "calls", call.number]), "aria-current": isShown ? "true" : null },
    h("span", { class: "number" }, call.number),
    h("span", { class: "grow" }, does(story, call)),
    marks,
    h("span", { class: "quiet right" }, isBad ? "" : short(call.sampled_tokens)),
    h("span", { class: "quiet right took" }, duration(call.latency_ms)),
  );
  link.style.paddingInlineStart = `${8 + Math.min(depth, 8) * 14}px`;
  return h("li", { class: depth ? "branch" : null }, link);
}

/** The tools that the answer calls, or how the call ended. */
function does(story, call) {
  const names = call.said === null ? [] : (story.messages[call.said].message.tool_calls ?? []).map((one) => one.function.name);
  if (names.length === 0) return call.finish_reason ?? call.outcome;
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return h("code", null, [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(", "));
}
