/** A conversation: what the model read and said, each message once, with marks where it forks. */

import { h } from "../dom.js";
import { foldedText } from "../folding.js";
import { duration, whole } from "../format.js";
import { href } from "../router.js";
import { callFacts } from "./call_facts.js";

const READ_LINES = 8;
const SAID_LINES = 40;
const FIRST_LINES = 3;

/**
 * @param {import("./story.js").Story} story
 * @param {number|null} number of the call to mark, whose facts are shown; null: none
 * @returns {HTMLElement}
 */
export function transcript(story, number) {
  const id = story.document.session_id;
  const call = number === null ? undefined : story.call(number);
  if (number !== null && !call) return h("p", { class: "problem" }, `This session has no call ${number}.`);
  const indexes = story.conversation(call);
  const items = indexes.flatMap((index, i) => [
    message(story, index, i, call),
    ...(story.failedAfter.get(index) ?? []).map((failed) => unanswered(story, failed, call)),
    forks(story, id, indexes[i + 1]),
  ]);
  if (call && call.said === null && call.asked === null) items.push(unanswered(story, call, call));
  if (items.length === 0) return h("p", { class: "quiet" }, "No call has been recorded yet.");
  return h("section", { class: "transcript", "aria-label": "Conversation" }, items);
}

function message(story, index, position, marked) {
  const { message: body } = story.messages[index];
  const said = story.saidBy.get(index) ?? [];
  const isMarked = marked !== undefined && said.includes(marked);
  const lines = body.role === "assistant" ? SAID_LINES : position === 0 ? FIRST_LINES : READ_LINES;
  const heading = [
    h("span", { class: "role" }, body.role),
    body.role === "tool" && h("code", null, story.toolNames.get(body.tool_call_id) ?? body.name ?? ""),
    said.map((call) => callLink(story.document.session_id, call)),
    body.role === "assistant" && said.length === 0 && h("span", { class: "quiet" }, "worded by the harness: no call sampled this"),
  ];
  return h(
    "article",
    { class: `message role-${body.role}${isMarked ? " marked" : ""}`, "data-index": index, tabindex: "-1", "aria-label": `${body.role}, message ${index + 1}` },
    h("header", null, heading),
    isMarked && callFacts(story, marked),
    body.reasoning && h("details", { class: "reasoning" }, h("summary", null, "reasoning"), foldedText(String(body.reasoning), SAID_LINES)),
    texts(body.content).map((text) => foldedText(text, lines, body.role === "tool" ? "text result" : "text")),
    (body.tool_calls ?? []).map(toolCall),
  );
}

function callLink(id, call) {
  return h(
    "a",
    { class: "call-link", href: href(["sessions", id, "calls", call.number]) },
    `call ${call.number}`,
    h("span", { class: "quiet" }, ` ${whole(call.sampled_tokens)} tokens, ${duration(call.latency_ms)}${call.finish_reason ? `, ${call.finish_reason}` : ""}`),
    call.masked && h("span", { class: "chip warn" }, `not trained: ${call.masked}`),
    call.disowned && h("span", { class: "chip warn" }, `disowned: ${call.disowned}`),
  );
}

function toolCall(called) {
  const { name } = called.function;
  const values = parsed(called.function.arguments);
  const content = values
    ? Object.entries(values).map(([key, value]) => argument(key, typeof value === "string" ? value : JSON.stringify(value)))
    : foldedText(String(called.function.arguments), READ_LINES, "text result");
  return h("div", { class: "tool-call" }, h("p", { class: "tool-name" }, h("span", { "aria-hidden": "true" }, "→ "), h("code", null, name)), content);
}

function argument(key, value) {
  const isLong = value.includes("\n") || value.length > 100;
  return h("div", { class: isLong ? "argument long" : "argument" }, h("span", { class: "quiet" }, `${key} `), isLong ? foldedText(value, READ_LINES, "text result") : h("code", null, value));
}

function forks(story, id, next) {
  if (next === undefined) return null;
  const others = story.siblings(next).map((index) => story.firstCallFrom(index)).filter(Boolean);
  if (others.length === 0) return null;
  const links = others.slice(0, 8).map((call) => h("a", { href: href(["sessions", id, "calls", call.number]) }, `call ${call.number} (${call.kind}${call.branch ? `, ${call.branch}` : ""})`));
  return h("p", { class: "fork" }, "Forks here: ", links.flatMap((link, i) => (i ? [", ", link] : [link])), others.length > 8 && ` and ${others.length - 8} more`);
}

function unanswered(story, call, marked) {
  const id = story.document.session_id;
  const error = call.record?.error;
  return h(
    "article",
    { class: `message unanswered${call === marked ? " marked" : ""}`, tabindex: "-1", "aria-label": `call ${call.number}, ${call.outcome}` },
    h("header", null, h("a", { class: "call-link", href: href(["sessions", id, "calls", call.number]) }, `call ${call.number}`), h("span", { class: "problem" }, `${call.outcome} after ${duration(call.latency_ms)}${error ? `: ${error.code}` : ""}`)),
    call === marked && callFacts(story, call),
    error && foldedText(error.message, READ_LINES, "text result"),
  );
}

function texts(content) {
  if (typeof content === "string") return content ? [content] : [];
  if (!Array.isArray(content)) return [];
  return content.map((part) => {
    if (part.type === "text") return part.text;
    const url = part.image_url?.url ?? part.audio_url?.url;
    if (url === undefined) return JSON.stringify(part);
    const kind = part.image_url ? "image" : "sound";
    return url.startsWith("data:") ? `[${kind}, ${whole(url.length)} characters of data]` : `[${kind} ${url}]`;
  });
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}
