/** An answer of the SQL box as a table and as CSV. */

import { h } from "../dom.js";
import { NONE } from "../format.js";
import { href } from "../router.js";
import { table } from "../table.js";

const SHOWN = 200;

/** @typedef {{columns: {name: string, type: string}[], rows: unknown[][], cut: boolean, ms: number}} Answer */

/**
 * @param {Answer} answer
 * @returns {HTMLElement}
 */
export function answerTable(answer) {
  const place = h("div", { class: "answer-table" });
  const draw = (count) => {
    const columns = answer.columns.map(({ name, type }) => (isNumber(type) ? `>${name}` : name));
    const rows = answer.rows.slice(0, count).map((row) => row.map((value, i) => cell(answer.columns[i].name, value)));
    const more = answer.rows.length > count && h("button", { type: "button", class: "more", onclick: () => draw(answer.rows.length) }, `show all ${answer.rows.length} rows`);
    place.replaceChildren(table("Answer", columns, rows, "No row."), ...(more ? [more] : []));
  };
  draw(SHOWN);
  return place;
}

/**
 * The answer as CSV (RFC 4180).
 * @param {Answer} answer
 * @returns {string}
 */
export function csv(answer) {
  const line = (values) => values.map(quoted).join(",");
  return [line(answer.columns.map(({ name }) => name)), ...answer.rows.map(line)].join("\r\n") + "\r\n";
}

/**
 * Whether a type of DuckDB is a number.
 * @param {string} type
 * @returns {boolean}
 */
export function isNumber(type) {
  return /^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|REAL|DECIMAL.*)$/i.test(type);
}

function cell(name, value) {
  if (value === null) return NONE;
  if (name === "session_id") return h("a", { class: "id", href: href(["sessions", value]) }, value);
  if (name === "task_id") return h("a", { class: "id", href: href(["tasks", value]) }, value);
  const text = written(value);
  return text.length > 120 ? h("span", { class: "clip", title: text.slice(0, 2000) }, text) : text;
}

function written(value) {
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function quoted(value) {
  if (value === null) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
