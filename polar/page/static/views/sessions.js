/** The list of sessions: one filter, ten thousand rows of which only those in view are elements. */

import { get } from "../api.js";
import { announce, h, replace, setText } from "../dom.js";
import { FILTER_WORDS, parseFilter } from "../filter.js";
import { flagMeanings } from "../flags.js";
import { counted, whole } from "../format.js";
import { lakeCondition } from "../lake_condition.js";
import { go, here, href, rewrite } from "../router.js";
import { sessions, sessionsRevision, subscribe } from "../store.js";
import { Windowed } from "../windowed.js";
import { COLUMNS, drawRow, headerRow, makeRow, ROW_HEIGHT } from "./session_rows.js";

const LAKE_ROWS = 1000;
const QUIET_MS = 250; // between two lists while rows stream in
const QUICK = ["status:FAILED", "status:TIMED_OUT", "phase:running", "reward:none", "reward>=1", "flag:forked", "flag:call_missing"];

/** What the user left, for the way back from a session. */
const left = { top: 0, active: null, order: null };

/** @type {(address: import("../router.js").Address) => import("../main.js").View} */
export function sessionsView(address) {
  const input = h("input", {
    type: "search",
    id: "filter",
    placeholder: "status:FAILED  reward>0.5  harness:pi  flag:forked  or any text",
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": "Filter the sessions",
    "aria-describedby": "filter-problems",
    oninput: () => filterChanged(),
  });
  const count = h("output", { class: "quiet", for: "filter", id: "count" });
  const problems = h("p", { class: "problem", id: "filter-problems", role: "status" });
  const older = h("button", { type: "button", onclick: () => void searchLake(null) }, "Search the lake");
  const more = h("button", { type: "button", id: "more", hidden: true, onclick: () => void searchLake(next) }, "More from the lake");
  let order = left.order;
  let meanings = new Map();
  let lake = null;
  let next = null; // what the lake's answer continues with
  let drawnRevision = -1;
  let timer = 0;
  const header = headerRow((column) => sortBy(column));
  const list = new Windowed({
    id: "sessions",
    label: "Sessions",
    rowHeight: ROW_HEIGHT,
    header,
    keyOf: (row) => row.session_id,
    make: makeRow,
    draw: (element, row) => drawRow(element, row, meanings),
    open: (row) => go(href(["sessions", row.session_id])),
  });
  const help = h(
    "details",
    { class: "filter-help" },
    h("summary", null, "What a filter can say"),
    h("p", null, "All words must hold. ", FILTER_WORDS.texts.map((name) => [h("code", null, `${name}:`), " "]), "look at the beginning of a text, with ", h("code", null, ","), " between alternatives. ", FILTER_WORDS.numbers.map((name) => [h("code", null, name), " "]), "are compared by ", h("code", null, "> < >= <= ="), ". ", h("code", null, "none"), " is an unknown value, ", h("code", null, "-"), " before a word is its opposite, and other words are looked for in ids, names and errors."),
  );
  const element = h(
    "div",
    { class: "sessions" },
    h("div", { class: "list-head" }, h("h1", { class: "unseen" }, "Sessions"), input, count, older, more),
    h("div", { class: "quick" }, QUICK.map((word) => h("button", { type: "button", class: "chip", onclick: () => toggle(word) }, word)), help),
    problems,
    list.element,
  );

  function rows() {
    return lake ?? sessions();
  }

  function build(fromTop = false) {
    drawnRevision = sessionsRevision();
    const filter = parseFilter(input.value);
    setText(problems, filter.problems.join("; "));
    problems.hidden = filter.problems.length === 0;
    const all = rows();
    let found = input.value.trim() && lake === null ? all.filter(filter.matches) : all;
    if (order) found = sorted(found, order);
    list.set(found, fromTop);
    const those = next === null ? counted(all.length, "session") : `the first ${counted(all.length, "session")}`;
    setText(count, found.length === all.length ? those : `${whole(found.length)} of ${those}`);
    more.hidden = next === null;
  }

  function filterChanged() {
    if (lake) {
      lake = null;
      next = null;
      setText(older, "Search the lake");
    }
    const start = performance.now();
    build(true);
    performance.measure("polar.filter", { start });
    rewrite(href(["sessions"], { q: input.value }));
    announce(count.textContent);
  }

  function toggle(word) {
    const parts = input.value.split(/\s+/).filter(Boolean);
    input.value = (parts.includes(word) ? parts.filter((part) => part !== word) : [...parts, word]).join(" ");
    filterChanged();
  }

  function sortBy(column) {
    if (order?.column !== column) order = { column, isDown: true };
    else order = order.isDown ? { column, isDown: false } : null;
    for (const cell of header.children) {
      const isSorted = order && cell.dataset.column === order.column;
      if (isSorted) cell.setAttribute("aria-sort", order.isDown ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    build(true);
  }

  /** @param {string|null} after `next` of the answer before; null: begin anew */
  async function searchLake(after) {
    older.disabled = more.disabled = true;
    try {
      const { condition, problems: unknown } = lakeCondition(input.value);
      if (unknown.length) throw new Error(unknown.join("; "));
      const asked = input.value;
      const page = await get("/api/sessions", { source: "lake", q: condition, limit: LAKE_ROWS, after });
      if (asked !== input.value) return; // the filter has changed meanwhile
      lake = after === null ? page.sessions : [...lake, ...page.sessions];
      next = page.next;
      setText(older, "From the lake");
      build(after === null);
      announce(`${count.textContent} in the lake`);
    } catch (error) {
      setText(problems, error.message);
      problems.hidden = false;
    } finally {
      older.disabled = more.disabled = false;
    }
  }

  const end = subscribe((changed) => {
    if (!changed.has("sessions") || timer) return;
    timer = setTimeout(() => {
      timer = 0;
      if (drawnRevision !== sessionsRevision()) build();
    }, QUIET_MS);
  });
  void flagMeanings().then((found) => {
    meanings = found;
    list.schedule();
  });
  input.value = address.query.get("q") ?? "";
  list.active = left.active;
  build();
  requestAnimationFrame(() => {
    list.element.scrollTop = left.top;
    if (address.query.get("focus")) input.focus();
    else list.element.focus({ preventScroll: true });
    list.draw();
  });
  return {
    title: "Sessions",
    element,
    keys: [
      { keys: "j, ArrowDown", does: "next session", run: () => list.move(1) },
      { keys: "k, ArrowUp", does: "session before", run: () => list.move(-1) },
      { keys: "PageDown", does: "a page down", run: () => list.move(20) },
      { keys: "PageUp", does: "a page up", run: () => list.move(-20) },
      { keys: "Home", does: "newest session", run: () => list.activate(0) },
      { keys: "End", does: "oldest session", run: () => list.activate(Infinity) },
      { keys: "Enter, o", does: "open the session", run: () => list.openActive() },
      { keys: "c", does: "compare the session's group", run: compare },
    ],
    update: () => {
      const asked = here().query.get("q") ?? "";
      if (asked !== input.value) {
        input.value = asked;
        build(true);
      }
      return true;
    },
    stop: () => {
      Object.assign(left, { top: list.element.scrollTop, active: list.active, order });
      clearTimeout(timer);
      list.stop();
      end();
    },
  };

  function compare() {
    const at = list.activeIndex();
    if (at >= 0) go(href(["tasks", list.items[at].task_id]));
  }
}

/** Unknown values come last, whichever way. */
function sorted(rows, { column, isDown }) {
  const { of } = COLUMNS.find((one) => one.name === column);
  const sign = isDown ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [left, right] = [of(a), of(b)];
    if (left === right) return 0;
    if (left === null || left === undefined) return 1;
    if (right === null || right === undefined) return -1;
    return left < right ? -sign : sign;
  });
}
