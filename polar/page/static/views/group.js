/** A task's samples side by side: where they diverge, and what the good ones did. */

import { get, path } from "../api.js";
import { cancelButton } from "../cancel.js";
import { h, replace } from "../dom.js";
import { flagChip, flagMeanings } from "../flags.js";
import { counted, NONE, reward, short } from "../format.js";
import { fillWith } from "../loading.js";
import { go, href } from "../router.js";
import { statusChip } from "../status.js";
import { comparison } from "./group_comparison.js";
import { foldedText } from "../folding.js";

const AGAIN_MS = 2000;

/** @type {(address: import("../router.js").Address) => import("../main.js").View} */
export function groupView(address) {
  const taskId = address.parts[1];
  const place = h("div", { class: "group pad" }, h("h1", { class: "id" }, taskId), h("p", { class: "quiet" }, "Loading …"));
  let timer = 0;
  let drawn = "";

  async function load() {
    const [task, meanings] = await Promise.all([get(path("tasks", taskId)), flagMeanings()]);
    const isLive = task.sessions.some((row) => row.phase !== "ended");
    clearTimeout(timer);
    if (isLive) timer = setTimeout(() => void again(), AGAIN_MS);
    const key = JSON.stringify(task);
    if (drawn === key) return [...place.childNodes];
    drawn = key;
    return draw(task, meanings, isLive);
  }

  async function again() {
    if (place.contains(document.activeElement) || place.querySelector(":hover details[open]")) timer = setTimeout(() => void again(), AGAIN_MS);
    else await load().then((content) => replace(place, content), () => undefined);
  }

  void fillWith(place, load);
  return { title: `Group ${taskId}`, element: place, stop: () => clearTimeout(timer), keys: [{ keys: "o", does: "open the best sample", run: () => openBest(place) }] };
}

function openBest(place) {
  const link = place.querySelector(".sample-head a");
  if (link) go(link.getAttribute("href"));
}

function draw(task, meanings, isLive) {
  const samples = [...task.sessions].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.sample_index - b.sample_index);
  const facts = [task.harness && `harness ${task.harness}`, task.run && `run ${task.run}`, counted(task.num_samples, "sample")].filter(Boolean);
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/sessions" }, "Sessions"), " / group"),
    h("div", { class: "title-row" }, h("h1", { class: "id" }, task.task_id), h("span", { class: "quiet" }, facts.join(" · ")), isLive && cancelButton(task.task_id)),
    task.instruction && h("section", { class: "panel" }, h("h2", null, "Instruction"), foldedText(task.instruction, 4)),
    comparison(samples),
    sideBySide(samples, task.common_calls ?? 0, meanings),
  ];
}

/** `requests`: how many first requests are equal in all samples. Then the answers before the last of them are equal, too. */
function sideBySide(samples, requests, meanings) {
  const common = Math.max(0, requests - 1);
  const columns = samples.map((sample) => h("div", { class: "sample" }, head(sample, meanings), h("div", null, steps(sample, common))));
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "Side by side"),
    h("p", { class: "quiet" }, parting(common)),
    h("div", { class: "samples scroll", tabindex: "0", role: "region", "aria-label": "Samples, the best first" }, columns),
  );
}

function parting(common) {
  if (common === 0) return "The samples diverge at the answer of their first call.";
  return `The first ${counted(common, "answer")} ${common === 1 ? "is" : "are"} equal in all samples. Below the line they diverge.`;
}

function head(sample, meanings) {
  return h(
    "header",
    { class: "sample-head" },
    h("h3", null, h("a", { href: href(["sessions", sample.session_id]) }, `sample ${sample.sample_index}`)),
    h("p", { class: "value" }, reward(sample.reward)),
    h("p", null, statusChip(sample), !sample.flags && h("span", { class: "quiet", title: "Its flags aren't known." }, ` ${NONE}`), (sample.flags ?? []).map((name) => flagChip(name, meanings.get(name)))),
    h("p", { class: "quiet" }, `${short(sample.calls?.length)} calls, ${short(sample.sampled_tokens)} tokens`),
    sample.error && h("p", { class: "problem clip", title: sample.error.message }, `${sample.error.stage}: ${sample.error.code}`),
  );
}

function steps(sample, common) {
  if (!sample.calls) return h("p", { class: "quiet" }, "The calls of so many samples aren't loaded; open the session.");
  const main = sample.calls.filter((call) => call.kind === "main");
  const side = sample.calls.length - main.length;
  return [
    h("ol", { class: "steps" }, main.map((call, i) => step(sample, call, i < common, i === common))),
    side > 0 && h("p", { class: "quiet" }, `and ${counted(side, "call")} beside the main work`),
  ];
}

function step(sample, call, isCommon, isFirst) {
  const classes = ["step", isCommon && "common", isFirst && "parts"].filter(Boolean).join(" ");
  return h(
    "li",
    { class: classes },
    h(
      "a",
      { href: href(["sessions", sample.session_id, "calls", call.number]) },
      h("span", { class: "quiet" }, `${call.number}`),
      call.tools.map((name) => h("span", { class: "tool" }, name)),
      call.finish_reason && call.finish_reason !== "tool_calls" && h("span", { class: "quiet" }, call.finish_reason),
    ),
    !isCommon && call.text && h("p", { class: "step-text" }, call.text),
  );
}
