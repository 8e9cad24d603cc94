/** A session: its head, the tree of its calls, and one of its parts: transcript, tokens, patch, logs, timeline, evaluation. */

import { get, path } from "../api.js";
import { h, replace } from "../dom.js";
import { problem } from "../loading.js";
import { here, href, go } from "../router.js";
import { session as rowOf, subscribe } from "../store.js";
import { callTree } from "../session/call_tree.js";
import { reasons, sessionHead } from "../session/head.js";
import { drawPart, PARTS } from "../session/parts.js";
import { Story } from "../session/story.js";

const AGAIN_MS = 1500;

/** @type {(address: import("../router.js").Address) => import("../main.js").View} */
export function sessionView(address) {
  const id = address.parts[1];
  const place = h("div", { class: "session pad" }, h("h1", { class: "id" }, id), h("p", { class: "quiet" }, "Loading …"));
  const stop = new AbortController();
  let story = null;
  let changedAt = 0;
  let timer = 0;
  let isLoading = false;

  async function load() {
    isLoading = true;
    changedAt = rowOf(id)?.changed_at ?? changedAt;
    try {
      const document = await get(path("sessions", id), {}, stop.signal);
      changedAt = Math.max(changedAt, document.row.changed_at);
      const isFirst = story === null;
      story = new Story(document);
      draw(isFirst);
      if (document.row.status !== "COMPLETED") void explain(story);
    } catch (error) {
      if (error.name !== "AbortError" && story === null) replace(place, problem(error), error.code === "unknown" && inTheLake(id));
    }
    isLoading = false;
  }

  /** Takes a second or so longer than the session itself. */
  async function explain(shown) {
    try {
      shown.why = await get(path("sessions", id, "why"), {}, stop.signal);
    } catch {
      return; // the session is shown without
    }
    const there = place.querySelector(".why");
    if (shown === story && there) replace(there, reasons(shown.document, shown.why));
  }

  function draw(isMoved) {
    const { number, part } = shownPart();
    const panel = h("section", { class: `part part-${part}`, "aria-label": PARTS.find((one) => one.name === part).title });
    const [left, top] = [place.querySelector(".tree-side")?.scrollTop ?? 0, window.scrollY];
    replace(
      place,
      sessionHead(story),
      h("div", { class: "columns" }, h("nav", { class: "tree-side", "aria-label": "Calls" }, h("h2", null, "Calls"), callTree(story, number)), h("div", { class: "part-side" }, tabs(id, part), panel)),
    );
    drawPart(panel, story, part, number);
    place.querySelector(".tree-side").scrollTop = left;
    if (!isMoved) window.scrollTo(0, top);
    else if (number === null) window.scrollTo(0, 0);
    else reveal();
  }

  function reveal() {
    place.querySelector(".tree [aria-current]")?.scrollIntoView({ block: "nearest" });
    const marked = place.querySelector(".marked");
    if (!marked) return;
    marked.scrollIntoView({ block: "start" });
    marked.focus({ preventScroll: true });
  }

  function step(by) {
    if (!story || story.calls.length === 0) return;
    const order = story.tree().map(({ call }) => call.number);
    const { number } = shownPart();
    const next = number === null ? (by > 0 ? 0 : order.length - 1) : Math.max(0, Math.min(order.length - 1, order.indexOf(number) + by));
    go(href(["sessions", id, "calls", order[next]]));
  }

  const end = subscribe((changed) => {
    if (!changed.has("sessions") || timer || isLoading || (rowOf(id)?.changed_at ?? 0) <= changedAt) return;
    timer = setTimeout(loadAgain, AGAIN_MS);
  });

  /** Later, while the focus is in what would be drawn away. */
  function loadAgain() {
    const isInUse = place.querySelector(".part :focus:not(.marked)") !== null;
    timer = isInUse ? setTimeout(loadAgain, AGAIN_MS) : 0;
    if (!isInUse) void load();
  }

  void load();
  const openPart = (part) => go(href(["sessions", id, ...(part ? [part] : [])]));
  return {
    title: id,
    element: place,
    keys: [
      { keys: "j, n", does: "next call", run: () => step(1) },
      { keys: "k, p", does: "call before", run: () => step(-1) },
      { keys: "t", does: "tokens", run: () => openPart("tokens") },
      { keys: "f", does: "first trained token, among the tokens", run: () => place.querySelector(".first-trained")?.click() },
      { keys: "m", does: "transcript", run: () => openPart("") },
      { keys: "d", does: "patch", run: () => openPart("patch") },
      { keys: "l", does: "logs", run: () => openPart("logs") },
      { keys: "c", does: "compare the group", run: () => story && go(href(["tasks", story.document.task_id])) },
      { keys: "Esc", does: "back to the list", run: () => go("#/sessions") },
    ],
    update: () => {
      if (story) draw(true);
      return true;
    },
    stop: () => {
      stop.abort();
      clearTimeout(timer);
      end();
    },
  };
}

/** A session whose records have left Kafka. */
function inTheLake(id) {
  const named = `'${id.replaceAll("'", "''")}'`;
  const sql = `SELECT call_number, role, content, tool_calls\nFROM messages\nWHERE session_id = ${named}\nORDER BY call_number, position`;
  return h("p", { class: "pad" }, h("a", { href: href(["sql"], { q: sql }) }, "Its transcript in the lake"));
}

function shownPart() {
  const [, , name, number] = here().parts;
  if (name === "calls") return { part: "transcript", number: Number(number) };
  return { part: PARTS.some((one) => one.name === name) ? name : "transcript", number: null };
}

function tabs(id, shown) {
  const links = PARTS.map(({ name, title }) =>
    h("a", { href: href(["sessions", id, ...(name === "transcript" ? [] : [name])]), "aria-current": name === shown ? "page" : null }, title),
  );
  return h("nav", { class: "tabs", "aria-label": "Parts of the session" }, links);
}
