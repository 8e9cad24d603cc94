/** Columns of the list of sessions, and its rows, which are made once and drawn again for other sessions. */

import { h, replace, setText } from "../dom.js";
import { flagChip } from "../flags.js";
import { duration, instant, NONE, reward, short } from "../format.js";
import { href } from "../router.js";
import { statusOf } from "../status.js";

export const ROW_HEIGHT = 28;

/** @type {{name: string, of: (row: any) => any, write?: (row: any) => string, class?: string}[]} */
export const COLUMNS = [
  { name: "session", of: (row) => row.session_id, class: "wide" },
  { name: "status", of: (row) => row.status ?? row.phase },
  { name: "reward", of: (row) => row.reward, write: (row) => reward(row.reward), class: "right" },
  { name: "harness", of: (row) => row.harness, write: (row) => row.harness ?? "", class: "hide-1" },
  { name: "run", of: (row) => row.run, write: (row) => row.run ?? row.label ?? "", class: "hide-2" },
  { name: "calls", of: (row) => row.calls, write: (row) => short(row.calls), class: "right" },
  { name: "sampled", of: (row) => row.sampled_tokens, write: (row) => short(row.sampled_tokens), class: "right hide-1" },
  { name: "trainable", of: (row) => row.trainable_tokens, write: (row) => short(row.trainable_tokens), class: "right hide-1" },
  { name: "version", of: (row) => row.policy_version, write: (row) => short(row.policy_version), class: "right hide-2" },
  { name: "took", of: tookMs, write: (row) => (tookMs(row) === null ? "" : duration(tookMs(row))), class: "right hide-1" },
  { name: "submitted", of: (row) => row.submitted_at, write: (row) => instant(row.submitted_at), class: "right hide-2" },
  { name: "flags and errors", of: (row) => row.flags?.length ?? null, class: "wide hide-1" },
];

/**
 * The row of column headers; each sorts.
 * @param {(column: string) => void} sortBy
 * @returns {HTMLElement}
 */
export function headerRow(sortBy) {
  const cells = COLUMNS.map(({ name, class: kind = "" }) =>
    h("div", { role: "columnheader", class: `cell ${kind}`, "data-column": name }, h("button", { type: "button", class: "sort", tabindex: "-1", onclick: () => sortBy(name) }, name)),
  );
  return h("div", { role: "row", class: "row", "aria-rowindex": "1" }, cells);
}

/** @returns {HTMLElement} an empty row */
export function makeRow() {
  const cells = COLUMNS.map(({ name, class: kind = "" }) => h("div", { role: "gridcell", class: `cell ${kind}` }, parts(name)));
  return h("div", { role: "row", class: "row" }, cells);
}

/**
 * Draw a session into a row.
 * @param {HTMLElement} element from `makeRow`
 * @param {any} row of a session
 * @param {Map<string, string>} meanings of flags
 */
export function drawRow(element, row, meanings) {
  const cells = element.children;
  const link = cells[0].firstChild;
  setText(link, row.session_id);
  const address = href(["sessions", row.session_id]);
  if (link.getAttribute("href") !== address) link.setAttribute("href", address);
  const { text, tone } = statusOf(row);
  const chip = cells[1].firstChild;
  setText(chip, text);
  if (chip.className !== `chip ${tone}`) chip.className = `chip ${tone}`;
  for (let i = 2; i < COLUMNS.length - 1; i += 1) setText(cells[i], COLUMNS[i].write(row));
  const last = cells[COLUMNS.length - 1];
  const signs = `${row.flags?.join() ?? NONE};${row.error?.code ?? ""};${meanings.size}`;
  if (last.dataset.signs === signs) return;
  last.dataset.signs = signs;
  const error = row.error && h("span", { class: "problem", title: row.error.message }, `${row.error.stage}: ${row.error.code} `);
  const unknown = !row.flags && h("span", { class: "quiet", title: "Its flags aren't known: neither its trajectory nor its calls were read." }, NONE);
  replace(last, error, unknown, (row.flags ?? []).map((name) => flagChip(name, meanings.get(name))));
}

function tookMs(row) {
  return row.ended_at === null || row.submitted_at === null ? null : row.ended_at - row.submitted_at;
}

function parts(name) {
  if (name === "session") return h("a", { class: "id", tabindex: "-1" });
  if (name === "status") return h("span", { class: "chip" });
  return null;
}
