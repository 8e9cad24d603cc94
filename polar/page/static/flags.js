/** Health flags: what the record of a session lacks or shows. Names and meanings come from the server. */

import { get } from "./api.js";
import { h } from "./dom.js";
import { words } from "./format.js";

const GRAVE = new Set(["call_missing", "answer_cut", "after_close", "no_logprobs", "evaluator_failed"]);
// Every session has it where nobody publishes versions, so it is no alarm by itself.
const MUTED = new Set(["version_unknown"]);

/** @type {Promise<Map<string, string>>|null} */
let loading = null;

/** @returns {Promise<Map<string, string>>} meaning by name */
export function flagMeanings() {
  loading ??= get("/api/flags").then(
    (flags) => new Map(flags.map((flag) => [flag.name, flag.meaning])),
    () => {
      loading = null;
      return new Map();
    },
  );
  return loading;
}

/**
 * A flag as a small label.
 * @param {string} name
 * @param {string} [meaning] shown under the pointer
 * @returns {HTMLElement}
 */
export function flagChip(name, meaning) {
  const tone = GRAVE.has(name) ? "bad" : MUTED.has(name) ? "mute" : "warn";
  return h("span", { class: `chip ${tone}`, title: meaning, "data-flag": name }, words(name));
}
