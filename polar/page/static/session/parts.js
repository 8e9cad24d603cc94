/** The parts of a session that one can look at, and how each is drawn. */

import { replace, h } from "../dom.js";
import { fillWith } from "../loading.js";
import { artifact, cutNote } from "./artifacts.js";
import { evaluationView, logsView } from "./evaluation.js";
import { lensView } from "./lens.js";
import { patchView } from "./patch.js";
import { timelineView } from "./timeline.js";
import { transcript } from "./transcript.js";

export const PARTS = [
  { name: "transcript", title: "Transcript" },
  { name: "tokens", title: "Tokens" },
  { name: "patch", title: "Patch" },
  { name: "logs", title: "Logs" },
  { name: "timeline", title: "Timeline" },
  { name: "evaluation", title: "Evaluation" },
];

/**
 * Draw a part.
 * @param {HTMLElement} panel
 * @param {import("./story.js").Story} story
 * @param {string} part one of the names in PARTS
 * @param {number|null} number of a call, for the transcript
 */
export function drawPart(panel, story, part, number) {
  const { document } = story;
  if (part === "tokens") replace(panel, lensView(document));
  else if (part === "patch") drawPatch(panel, document);
  else if (part === "logs") replace(panel, logsView(document));
  else if (part === "timeline") replace(panel, timelineView(document));
  else if (part === "evaluation") replace(panel, evaluationView(document));
  else replace(panel, transcript(story, number));
}

function drawPatch(panel, document) {
  if (!document.artifacts.some(({ name }) => name === "patch")) {
    replace(panel, h("p", { class: "quiet" }, "The run left no patch."));
    return;
  }
  void fillWith(panel, async () => {
    const { text, cut } = await artifact(document.session_id, "patch");
    return [cut && cutNote(document.session_id, "patch"), patchView(text)];
  });
}
