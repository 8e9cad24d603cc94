/** The line of figures at the top of the runs. Rates are of the last minute. */

import { h } from "../dom.js";
import { NONE, percent, reward, short, whole } from "../format.js";

/**
 * @param {any} live the snapshot of `GET /api/overview`
 * @param {any} series of the chosen run; undefined without one
 * @returns {HTMLElement[]}
 */
export function figures(live, series) {
  const newest = series?.buckets.findLast((bucket) => bucket.mean_reward !== null);
  const groups = (series?.buckets ?? []).reduce((sum, bucket) => sum + bucket.groups, 0);
  const flat = (series?.buckets ?? []).reduce((sum, bucket) => sum + bucket.zero_variance_groups, 0);
  const phases = live.phases;
  const running = (phases.running ?? 0) + (phases.init ?? 0) + (phases.evaluating ?? 0);
  const waiting = (phases.queued ?? 0) + (phases.ready ?? 0) + (phases.ran ?? 0);
  const stale = (series?.buckets ?? []).findLast((bucket) => bucket.staleness_mean !== null)?.staleness_mean;
  return [
    one("Reward", reward(newest?.mean_reward), "mean, last minute with rewards"),
    one("Zero variance", groups ? percent(flat / groups) : NONE, groups ? `${whole(flat)} of ${whole(groups)} groups` : "no group ended"),
    one("Ended", whole(live.ended), "sessions a minute"),
    one("At work", whole(running), `${whole(waiting)} wait for a slot`),
    one("Sampled", short(live.calls.sampled_tokens / 60), "tokens a second"),
    one("Trainable", short(live.trainable_tokens), "tokens a minute"),
    one("Calls", whole(live.calls.answered), `${whole(live.calls.failed)} failed, ${whole(live.calls.abandoned)} abandoned`, live.calls.failed > 0),
    one("Policy", live.policy_version === null ? NONE : whole(live.policy_version), stale === undefined ? "version" : `staleness ${short(stale)}`),
  ];
}

function one(name, value, note, isBad = false) {
  return h("div", { class: "figure" }, h("h2", null, name), h("p", { class: "value" }, value), h("p", { class: isBad ? "note problem" : "note" }, note));
}
