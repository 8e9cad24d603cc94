/** A simple chart of an answer: one column of names or moments, one of numbers. */

import { linesChart } from "../charts/lines.js";
import { h, replace } from "../dom.js";
import { short } from "../format.js";
import { isNumber } from "./sql_table.js";

const BARS = 40;

/**
 * The chart with its choice of columns; null where no column is a number.
 * @param {import("./sql_table.js").Answer} answer
 * @returns {HTMLElement|null}
 */
export function answerChart(answer) {
  const numbers = answer.columns.map((column, i) => ({ ...column, i })).filter(({ type }) => isNumber(type));
  const names = answer.columns.map((column, i) => ({ ...column, i })).filter(({ type }) => !isNumber(type));
  if (numbers.length === 0 || answer.rows.length < 2) return null;
  const x = select("chart-x", names.length ? names : numbers);
  const y = select("chart-y", numbers);
  if (names.length === 0 && numbers.length > 1) y.value = String(numbers[1].i);
  const place = h("div", null);
  const draw = () => replace(place, drawing(answer, Number(x.value), Number(y.value)));
  x.addEventListener("change", draw);
  y.addEventListener("change", draw);
  draw();
  return h("details", { class: "panel sql-chart", open: true }, h("summary", null, "Chart"), h("p", { class: "lens-controls" }, h("label", { for: "chart-y" }, "Figure"), y, h("label", { for: "chart-x" }, "by"), x), place);
}

function select(id, columns) {
  return h("select", { id }, columns.map(({ name, i }) => h("option", { value: i }, name)));
}

function drawing(answer, x, y) {
  const title = `${answer.columns[y].name} by ${answer.columns[x].name}`;
  const rows = answer.rows.filter((row) => row[y] !== null).map((row) => ({ name: row[x], value: Number(row[y]) }));
  if (/^(TIMESTAMP|DATE)/i.test(answer.columns[x].type)) {
    const moments = rows.map(({ name, value }) => ({ at: typeof name === "number" ? name : Date.parse(name), value })).filter(({ at }) => !Number.isNaN(at));
    moments.sort((a, b) => a.at - b.at);
    return linesChart(title, moments.map(({ at }) => at), [{ name: answer.columns[y].name, tone: "tone-1", values: moments.map(({ value }) => value) }]);
  }
  return bars(title, rows.slice(0, BARS));
}

function bars(title, rows) {
  const most = Math.max(...rows.map(({ value }) => Math.abs(value)), 1e-12);
  const items = rows.map(({ name, value }) => {
    const mark = h("i", { class: value < 0 ? "hbar less" : "hbar" });
    mark.style.inlineSize = `${(Math.abs(value) / most) * 100}%`;
    return h("li", null, h("span", { class: "clip" }, name === null ? "null" : String(name)), h("span", { class: "track" }, mark), h("span", { class: "right" }, short(value)));
  });
  return h("ul", { class: "hbars", "aria-label": title }, items);
}
