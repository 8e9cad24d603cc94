/** What a session left behind, by name: logs, the evaluator's output, the patch. Loaded when it is opened. */

import { get, path } from "../api.js";
import { h } from "../dom.js";
import { foldedText } from "../folding.js";
import { short } from "../format.js";
import { fillWith } from "../loading.js";

const LINES = 400;

/**
 * The text of an artifact.
 * @param {string} id of the session
 * @param {string} name
 * @returns {Promise<{name: string, text: string, size: number, cut: boolean}>}
 */
export function artifact(id, name) {
  return get(path("sessions", id, "artifacts", name), { limit: 1_000_000 });
}

/**
 * The words above an artifact that isn't whole.
 * @param {string} id of the session
 * @param {string} name
 * @returns {HTMLElement}
 */
export function cutNote(id, name) {
  return h("p", { class: "quiet" }, `These are the first million bytes; polar show ${id} --artifact ${name} prints all.`);
}

/**
 * Artifacts, each under its name; the first is open.
 * @param {string} id
 * @param {{name: string, size: number|null}[]} artifacts
 * @param {string} nothing the words without any
 * @returns {HTMLElement}
 */
export function artifactsView(id, artifacts, nothing) {
  if (artifacts.length === 0) return h("p", { class: "quiet" }, nothing);
  return h("div", null, artifacts.map((one, i) => entry(id, one, i === 0)));
}

function entry(id, { name, size }, isOpen) {
  const place = h("div", { class: "log" });
  let isLoaded = false;
  const load = () => {
    if (isLoaded || !element.open) return;
    isLoaded = true;
    void fillWith(place, async () => {
      const { text, cut } = await artifact(id, name);
      return h("div", null, cut && cutNote(id, name), text ? foldedText(text, LINES, "text result") : h("p", { class: "quiet" }, "It is empty."));
    });
  };
  const element = h("details", { class: "artifact", open: isOpen, ontoggle: load }, h("summary", null, h("code", null, name), h("span", { class: "quiet" }, size === null ? " not in this store" : ` ${short(size)} bytes`)), place);
  load();
  return element;
}
