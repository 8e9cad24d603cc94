/** The evaluator's report: the reward and why, its output or its traceback. */

import { h } from "../dom.js";
import { foldedText } from "../folding.js";
import { reward } from "../format.js";
import { artifactsView } from "./artifacts.js";

const RUN = new Set(["patch", "agent_log", "agent_transcript"]);

/**
 * @param {any} document of `GET /api/sessions/ID`
 * @returns {HTMLElement}
 */
export function evaluationView(document) {
  const found = document.artifacts.filter(({ name }) => !RUN.has(name));
  const error = document.evaluation_error;
  return h(
    "div",
    { class: "evaluation" },
    h("p", { class: "big" }, "Reward ", h("strong", null, reward(document.reward))),
    error && h("div", { class: "problem" }, h("p", null, `${error.stage} ${error.kind}/${error.code}`), foldedText(error.message, 12, "text result")),
    document.reward_reason ? foldedText(document.reward_reason, 30) : h("p", { class: "quiet" }, "The evaluator gave no reason."),
    artifactsView(document.session_id, found, "The evaluation left no output."),
  );
}

/**
 * The artifacts of the run that are logs.
 * @param {any} document
 * @returns {HTMLElement}
 */
export function logsView(document) {
  const found = document.artifacts.filter(({ name }) => RUN.has(name) && name !== "patch");
  return artifactsView(document.session_id, found, "The run left no log.");
}
