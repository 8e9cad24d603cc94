/** A filter as an SQL condition over the lake's view `sessions`: the same words as in `filter.js`, as far as the view has them. */

import { filterWords } from "./filter.js";

const TEXTS = {
  status: ["status"],
  harness: ["harness"],
  run: ["run"],
  task: ["task_id"],
  session: ["session_id"],
  label: ["label"],
  error: ["error_code", "error_kind", "error_stage"],
};
const NUMBERS = { reward: "reward", attempt: "attempt", seconds: "epoch(ended_at - submitted_at)" };
const FREE = ["session_id", "run", "label", "harness", "status", "error_code", "error_message"];

/**
 * @param {string} query
 * @returns {{condition: string, problems: string[]}} no condition is `true`
 */
export function lakeCondition(query) {
  const conditions = [];
  const problems = [];
  for (const { isNot, name, operator, value } of filterWords(query)) {
    const condition = name ? named(name, operator, value) : anyOf(FREE, (column) => `contains(lower(${column}), ${quoted(value)})`);
    if (condition === null) problems.push(`the lake's list has no ${name}${operator}${value}`);
    else conditions.push(isNot ? `NOT coalesce(${condition}, false)` : condition);
  }
  return { condition: conditions.length ? conditions.join(" AND ") : "true", problems };
}

function named(name, operator, value) {
  const isUnknown = value.toLowerCase() === "none" || value.toLowerCase() === "null";
  if (Object.hasOwn(NUMBERS, name)) {
    if (isUnknown) return `${NUMBERS[name]} IS NULL`;
    return Number.isNaN(Number(value)) ? null : `${NUMBERS[name]} ${operator === ":" ? "=" : operator} ${Number(value)}`;
  }
  if (!Object.hasOwn(TEXTS, name) || (operator !== ":" && operator !== "=")) return null;
  if (isUnknown) return `(${TEXTS[name].map((column) => `${column} IS NULL`).join(" AND ")})`;
  const words = value.split(",").filter(Boolean);
  return `(${words.map((word) => anyOf(TEXTS[name], (column) => `starts_with(lower(${column}), ${quoted(word)})`)).join(" OR ")})`;
}

function anyOf(columns, write) {
  return `(${columns.map((column) => `coalesce(${write(column)}, false)`).join(" OR ")})`;
}

function quoted(text) {
  return `'${text.toLowerCase().replaceAll("'", "''")}'`;
}
