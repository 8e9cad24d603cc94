/** Tables below the charts: stages, newest groups, harnesses, errors. */

import { h } from "../dom.js";
import { instant, NONE, percent, reward, short, whole } from "../format.js";
import { href } from "../router.js";
import { table } from "../table.js";

/** @param {any} live @returns {HTMLElement} */
export function stagesTable(live) {
  const rows = live.stages.map((load) => [
    load.pool,
    load.stage === "run" ? ["run ", h("span", { class: "quiet" }, "READY")] : load.stage,
    h("meter", { min: 0, max: Math.max(1, load.slots), value: load.busy, "aria-label": `${load.busy} of ${load.slots} slots of ${load.stage} busy` }),
    `${whole(load.busy)} / ${whole(load.slots)}`,
    load.waiting > load.slots * 4 && load.slots === 0 ? h("strong", { class: "problem" }, whole(load.waiting)) : whole(load.waiting),
    whole(load.started),
    whole(load.finished),
    whole(load.workers),
  ]);
  const columns = ["pool", "stage", "slots", ">busy", ">waiting", ">started/min", ">ended/min", ">workers"];
  return table("Stages", columns, rows, "No worker and no waiting session.");
}

/** @param {any} live @returns {HTMLElement} */
export function groupsTable(live) {
  const rows = live.groups.slice(0, 16).map((group) => [
    h("a", { href: href(["tasks", group.task_id]), class: "id" }, group.task_id),
    h("span", { class: "dots", role: "img", "aria-label": `rewards ${group.rewards.map(reward).join(", ")}` }, dots(group.rewards)),
    `${group.ended} / ${group.num_samples}`,
    reward(group.mean),
    group.std === 0 && group.ended === group.num_samples ? h("span", { class: "chip warn" }, "no variance") : reward(group.std),
    instant(group.moved_at),
  ]);
  return table("Newest groups", ["task", "rewards", ">ended", ">mean", ">std", ">changed"], rows, "No group yet.");
}

/** @param {any[]} harnesses @returns {HTMLElement} */
export function harnessesTable(harnesses) {
  const rows = harnesses.map((one) => [
    h("a", { href: href(["sessions"], { q: `harness:${one.harness}` }) }, one.harness),
    whole(one.sessions),
    percent(one.merge_rate),
    short(one.sampled_tokens),
    short(one.prompt_tokens),
    one.sessions ? short((one.sampled_tokens + one.prompt_tokens) / one.sessions) : NONE,
  ]);
  const columns = ["harness", ">sessions", ">merge rate", ">sampled tokens", ">prompt tokens", ">tokens a session"];
  return table("Harnesses and their cost in tokens", columns, rows, "No session yet.");
}

/** @param {any} live @returns {HTMLElement} */
export function errorsTable(live) {
  const rows = live.errors.slice(0, 20).map((error) => [
    instant(error.at),
    h("a", { href: href(["sessions", error.session_id]), class: "id" }, error.session_id),
    error.stage,
    `${error.kind}/${error.code}`,
    h("span", { class: "clip fill", title: error.message }, error.message),
  ]);
  return table("Newest errors", ["at", "session", "stage", "error", "message"], rows, "No error.");
}

function dots(rewards) {
  const known = rewards.filter((value) => value !== null);
  const low = Math.min(0, ...known);
  const high = Math.max(1, ...known);
  return rewards.map((value) => {
    const level = value === null ? "unknown" : Math.round(((value - low) / (high - low)) * 4);
    return h("i", { class: `dot-${level}` });
  });
}
