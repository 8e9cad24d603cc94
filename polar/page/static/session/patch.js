/** A patch as a coloured diff, a part for each file. */

import { h } from "../dom.js";
import { counted } from "../format.js";

const OPEN_FILES = 20;
const OPEN_LINES = 400;

/**
 * @param {string} text in the form of `git diff`
 * @returns {HTMLElement}
 */
export function patchView(text) {
  const files = split(text);
  if (files.length === 0) return h("pre", { class: "text result" }, text || "The run changed nothing.");
  const added = files.reduce((sum, file) => sum + file.added, 0);
  const removed = files.reduce((sum, file) => sum + file.removed, 0);
  return h(
    "div",
    { class: "patch" },
    h("p", { class: "quiet" }, `${counted(files.length, "file")}, ${counted(added, "line")} added, ${removed.toLocaleString("en-GB")} removed`),
    files.map((file, i) => fileView(file, i < OPEN_FILES && file.lines.length <= OPEN_LINES)),
  );
}

function fileView(file, isOpen) {
  const place = h("div", { class: "diff", role: "table", "aria-label": file.name });
  const element = h(
    "details",
    { open: isOpen, ontoggle: () => element.open && place.childElementCount === 0 && place.append(...rows(file.lines)) },
    h("summary", null, h("code", null, file.name), h("span", { class: "plus" }, ` +${file.added}`), h("span", { class: "minus" }, ` −${file.removed}`)),
    place,
  );
  if (isOpen) place.append(...rows(file.lines));
  return element;
}

function rows(lines) {
  let [before, after] = [0, 0];
  return lines.map((line) => {
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(line);
    if (hunk) {
      before = Number(hunk[1]);
      after = Number(hunk[2]);
      return row("hunk", "", "", line);
    }
    if (line.startsWith("+")) return row("plus", "", after++, line);
    if (line.startsWith("-")) return row("minus", before++, "", line);
    if (line.startsWith("\\")) return row("hunk", "", "", line);
    return row("same", before++, after++, line);
  });
}

function row(kind, before, after, line) {
  return h("div", { class: `diff-line ${kind}`, role: "row" }, h("span", { class: "line-number", role: "cell" }, before), h("span", { class: "line-number", role: "cell" }, after), h("span", { class: "line-text", role: "cell" }, line));
}

/** Files of a patch; lines before the first hunk say only what the name says. */
function split(text) {
  const files = [];
  let file = null;
  let isBody = false;
  const lines = text.replace(/\n$/, "").split("\n");
  const begin = (name) => {
    file = { name, lines: [], added: 0, removed: 0 };
    files.push(file);
    isBody = false;
  };
  for (const [i, line] of lines.entries()) {
    if (line.startsWith("diff --git ")) begin(/ b\/(.*)$/.exec(line)?.[1] ?? line.slice(11));
    else if (!(file && !isBody) && line.startsWith("--- ") && lines[i + 1]?.startsWith("+++ ") && lines[i + 2]?.startsWith("@@")) {
      begin(lines[i + 1].slice(4).replace(/^b\//, "")); // a patch without git's own lines
    } else if (file) {
      isBody ||= line.startsWith("@@") || line.startsWith("GIT binary patch") || line.startsWith("Binary files");
      if (!isBody) continue;
      file.lines.push(line);
      if (line.startsWith("+")) file.added += 1;
      else if (line.startsWith("-")) file.removed += 1;
    }
  }
  return files;
}
