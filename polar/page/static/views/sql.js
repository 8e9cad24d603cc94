/** The SQL box: a question to the lake, answered as a table, a chart or a CSV file. */

import { get, path, post } from "../api.js";
import { announce, h, replace } from "../dom.js";
import { counted } from "../format.js";
import { problem } from "../loading.js";
import { here, href, rewrite } from "../router.js";
import { answerChart } from "./sql_chart.js";
import { answerTable, csv } from "./sql_table.js";

const LIMIT = 1000;
const FIRST = "SELECT harness, count(*) AS sessions, avg(reward) AS mean_reward\nFROM sessions\nWHERE status IS NOT NULL\nGROUP BY harness\nORDER BY mean_reward DESC";

/** What was asked last, for the way back. */
let left = { sql: FIRST, answer: null };

/** @type {(address: import("../router.js").Address) => import("../main.js").View} */
export function sqlView(address) {
  const text = h("textarea", { id: "sql", rows: 8, spellcheck: "false", autocomplete: "off", onkeydown: typed });
  const questions = h("select", { id: "question", onchange: choose }, h("option", { value: "" }, "Questions of the cookbook …"));
  const button = h("button", { type: "button", class: "primary", onclick: () => void ask() }, "Run");
  const place = h("div", { class: "answer" });
  let known = [];

  function typed(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    void ask();
  }

  function choose() {
    const chosen = known[Number(questions.value)];
    if (!chosen) return;
    text.value = chosen.sql.trim();
    void ask();
  }

  async function ask() {
    if (button.disabled) return;
    button.disabled = true;
    replace(place, h("p", { class: "quiet" }, "Running …"));
    rewrite(href(["sql"], { q: text.value }));
    try {
      const answer = await post(path("sql"), { sql: text.value, limit: LIMIT });
      left = { sql: text.value, answer };
      draw(answer);
    } catch (error) {
      replace(place, h("div", { class: "sql-error" }, problem(error)));
    }
    button.disabled = false;
  }

  function draw(answer) {
    const note = `${counted(answer.rows.length, "row")}${answer.cut ? ", and more that aren't shown" : ""} in ${answer.ms} ms`;
    announce(note);
    const download = h("button", { type: "button", onclick: () => save(csv(answer)) }, "Download CSV");
    replace(place, h("div", { class: "title-row" }, h("p", { class: "quiet" }, note), download), answerChart(answer), answerTable(answer));
  }

  void get("/api/questions").then((found) => {
    known = found;
    questions.append(...found.map(({ title }, i) => h("option", { value: i }, title)));
  }, () => undefined);
  const asked = address.query.get("q");
  text.value = asked ?? left.sql;
  if (left.answer && text.value === left.sql) draw(left.answer);
  return {
    title: "SQL",
    element: h(
      "div",
      { class: "sql pad" },
      h("div", { class: "title-row" }, h("h1", null, "SQL"), h("label", { for: "question", class: "unseen" }, "Questions"), questions),
      h("label", { for: "sql", class: "quiet" }, "One reading statement in DuckDB's SQL, over the lake: sessions, calls, groups, tasks, traces … At most 1,000 rows, 10 seconds."),
      text,
      h("div", { class: "buttons start" }, button, h("span", { class: "quiet" }, h("kbd", null, "Ctrl"), " ", h("kbd", null, "Enter"))),
      place,
    ),
    keys: [
      { keys: "e, i", does: "write SQL", run: () => text.focus() },
      { keys: "r", does: "run", run: () => void ask() },
    ],
    update: () => here().query.get("q") === text.value || here().query.get("q") === null,
  };
}

function save(content) {
  const url = URL.createObjectURL(new Blob([content], { type: "text/csv" }));
  const link = h("a", { href: url, download: "polar.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
