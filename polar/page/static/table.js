/** Plain tables, which scroll sideways on a small screen. */

import { h } from "./dom.js";

/**
 * A table under a heading.
 * @param {string} title
 * @param {string[]} columns a `>` before a name aligns its cells right
 * @param {(unknown[])[]} rows cells: text, numbers, nodes
 * @param {string} nothing the words without rows
 * @returns {HTMLElement}
 */
export function table(title, columns, rows, nothing) {
  const isRight = columns.map((name) => name.startsWith(">"));
  const cells = (row) => row.map((cell, i) => h("td", isRight[i] ? { class: "right" } : null, cell));
  const content = rows.length
    ? h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
        h(
          "table",
          null,
          h("thead", null, h("tr", null, columns.map((name, i) => h("th", { scope: "col", class: isRight[i] ? "right" : null }, name.replace(/^>/, ""))))),
          h("tbody", null, rows.map((row) => h("tr", null, cells(row)))),
        ),
      )
    : h("p", { class: "quiet none" }, nothing);
  return h("section", { class: "panel" }, h("h2", null, title), content);
}
