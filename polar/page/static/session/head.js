/** The head of a session: how it ended, its figures, its health flags with their meanings. */

import { cancelButton } from "../cancel.js";
import { h } from "../dom.js";
import { flagChip } from "../flags.js";
import { foldedText } from "../folding.js";
import { counted, duration, instant, NONE, reward, whole, words } from "../format.js";
import { href } from "../router.js";
import { statusChip } from "../status.js";

/**
 * @param {import("./story.js").Story} story
 * @returns {HTMLElement}
 */
export function sessionHead(story) {
  const { document } = story;
  const { row, stats } = document;
  const taskHref = href(["tasks", document.task_id]);
  const facts = [
    document.harness && `harness ${document.harness}`,
    document.run && `run ${document.run}`,
    document.label && `label ${document.label}`,
    document.builder && `builder ${document.builder}`,
    document.backend && `runtime ${document.backend}`,
    document.attempt > 1 && `attempt ${document.attempt}`,
    document.exit_code !== null && document.exit_code !== 0 && `exit code ${document.exit_code}`,
    `submitted ${instant(row.submitted_at)}`,
    row.ended_at !== null && row.submitted_at !== null && `took ${duration(row.ended_at - row.submitted_at)}`,
    `${counted(document.calls.length, "call")}`,
    stats && `${whole(stats.sampled_tokens ?? 0)} tokens sampled, ${whole(stats.trainable_tokens ?? 0)} trainable in ${counted(stats.traces ?? 0, "trace")}`,
  ];
  return h(
    "header",
    { class: "session-head" },
    h("p", { class: "crumbs" }, h("a", { href: "#/sessions" }, "Sessions"), " / ", h("a", { href: taskHref }, document.task_id)),
    h(
      "div",
      { class: "title-row" },
      h("h1", { class: "id" }, document.session_id),
      statusChip(row),
      h("span", { class: "big" }, "reward ", h("strong", null, reward(document.reward))),
      h("a", { class: "button", href: taskHref }, `Compare the group of ${document.num_samples}`),
      row.phase !== "ended" && cancelButton(document.task_id),
    ),
    document.reward_reason && !document.evaluation_error && h("div", { class: "reward-reason" }, h("span", { class: "quiet" }, "The evaluator's reason: "), foldedText(document.reward_reason, 3)),
    h("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    h("div", { class: "why" }, reasons(document, story.why)),
    warnings(document),
    flags(document),
    (document.notes ?? []).map((note) => h("p", { class: "notice" }, note)),
  );
}

function warnings(document) {
  const texts = [document.run_warning, document.unenforced?.length ? `the runtime doesn't enforce: ${document.unenforced.join(", ")}` : null].filter(Boolean);
  const refused = document.refused_requests ?? [];
  const last = refused.at(-1);
  return [
    texts.map((text) => h("p", { class: "notice" }, text)),
    last && h("p", { class: "notice" }, `The proxy refused ${counted(refused.reduce((sum, one) => sum + one.requests, 0), "request")}; the last: ${last.method} ${last.path} got ${last.status}, ${last.message}`),
  ];
}

/**
 * The session's error, and what the session waits for or why it ended so, with the ways out. A finding that quotes the error replaces its message.
 * @param {any} document of `GET /api/sessions/ID`
 * @param {{sentence: string, way_out: string}[]} findings
 */
export function reasons({ error }, findings) {
  const quoting = error && findings.find((one) => one.sentence.includes(`: ${withoutEnd(error.message)}.`));
  const wayOut = (one) => h("p", { class: "quiet" }, `→ ${one.way_out}`);
  return [
    error && h("div", { class: "notice problem" }, h("p", null, `${error.stage} ${error.kind}/${error.code}`), foldedText(quoting?.sentence ?? error.message, 6), quoting && wayOut(quoting)),
    findings.filter((one) => one !== quoting).map((one) => h("div", { class: "notice" }, h("p", null, one.sentence), wayOut(one))),
  ];
}

/** As a finding quotes a message: its sentence has an end of its own. */
function withoutEnd(message) {
  return message.replace(/[. \n]+$/, "");
}

function flags(document) {
  const found = document.flags;
  if (found === null) return h("p", { class: "quiet" }, `Health: ${NONE}, its trajectory isn't on Kafka any longer`);
  if (found.length === 0) return null;
  const items = found.map((flag) =>
    h("li", null, flagChip(flag.name, flag.meaning), h("span", null, ` ${flag.meaning}`), flag.calls.length > 0 && [" Calls: ", links(document.session_id, flag.calls)]),
  );
  return h("details", { class: "flags", open: found.length <= 3 }, h("summary", null, `Health: ${found.map((flag) => words(flag.name)).join(", ")}`), h("ul", null, items));
}

function links(id, calls) {
  const shown = calls.slice(0, 12).flatMap((number, i) => [i ? ", " : null, h("a", { href: href(["sessions", id, "calls", number]) }, number)]);
  return calls.length > 12 ? [...shown, " …"] : shown;
}
