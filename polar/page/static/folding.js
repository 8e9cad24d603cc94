/** Long texts: the beginning, and a button for the rest. The rest becomes elements only when it is asked for. */

import { h } from "./dom.js";

const LINE = 160; // characters that count as a line where there are no line ends
const SHOWN = 200_000; // characters that one step shows; more at once would hold the page

/**
 * A text, of which at most about `lines` lines are shown at first.
 * @param {string} text
 * @param {number} lines
 * @param {string} [kind] class of the text
 * @returns {HTMLElement}
 */
export function foldedText(text, lines, kind = "text") {
  const end = endOf(text, lines);
  const content = h("div", { class: kind }, text.slice(0, end));
  if (end >= text.length) return content;
  const button = h("button", { type: "button", class: "more", "aria-expanded": "false" });
  let shown = end;
  const label = () => {
    const left = text.length - shown;
    const rest = text.slice(shown, shown + SHOWN);
    button.textContent = left ? `show ${linesIn(rest)} more lines, ${left.toLocaleString("en-GB")} characters` : "show less";
    button.setAttribute("aria-expanded", String(!left));
  };
  button.addEventListener("click", () => {
    shown = shown >= text.length ? end : Math.min(text.length, shown + SHOWN);
    content.textContent = text.slice(0, shown);
    label();
  });
  label();
  return h("div", { class: "folded" }, content, button);
}

function endOf(text, lines) {
  if (text.length <= (lines + 2) * LINE && linesIn(text) <= lines + 2) return text.length;
  let at = -1;
  for (let i = 0; i < lines; i += 1) {
    const next = text.indexOf("\n", at + 1);
    if (next < 0 || next > lines * LINE) return Math.min(text.length, lines * LINE);
    at = next;
  }
  return at;
}

function linesIn(text) {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count += 1;
  return count;
}
