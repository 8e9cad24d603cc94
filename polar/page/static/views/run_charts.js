/** The charts of a run, from its minutes. */

import { heatChart } from "../charts/heat.js";
import { histogramChart } from "../charts/histogram.js";
import { linesChart } from "../charts/lines.js";
import { stacksChart } from "../charts/stacks.js";
import { percent, reward } from "../format.js";

const MINUTE_S = 60;
const RECENT = 30; // minutes

/**
 * @param {any} series a run's entry of `series` in `GET /api/overview`
 * @returns {HTMLElement[]}
 */
export function runCharts(series) {
  const { buckets } = series;
  const times = buckets.map((bucket) => bucket.at);
  const column = (read) => buckets.map(read);
  const share = (bucket) => (bucket.groups ? bucket.zero_variance_groups / bucket.groups : null);
  const unversioned = buckets.some((bucket) => bucket.sessions) ? "no version published: no call was sampled by one" : "no trajectory yet";
  return [
    heatChart("Reward and its histogram", series, reward),
    linesChart("Groups with zero variance", times, [{ name: "share", tone: "tone-2", values: column(share) }], { write: percent, high: 1 }),
    linesChart("Sessions ended a minute", times, [{ name: "sessions", tone: "tone-1", values: column((bucket) => bucket.sessions) }]),
    linesChart("Tokens a second", times, [
      { name: "sampled", tone: "tone-1", values: column((bucket) => bucket.sampled_tokens / MINUTE_S) },
      { name: "trainable", tone: "tone-3", values: column((bucket) => bucket.trainable_tokens / MINUTE_S) },
    ]),
    stacksChart("Failures by kind", times, column((bucket) => bucket.failures)),
    linesChart("Staleness: mean versions behind newest used", times, [{ name: "staleness", tone: "tone-4", values: column((bucket) => bucket.staleness_mean) }], { nothing: unversioned }),
    stacksChart("Calls a minute by policy version", times, column((bucket) => named(bucket.policy_versions)), newestFirst, unversioned),
    linesChart("Sampled tokens a session", times, [{ name: "tokens", tone: "tone-4", values: column((bucket) => (bucket.sessions ? bucket.sampled_tokens / bucket.sessions : null)) }]),
    histogramChart("Rewards of the last half hour", series, RECENT),
  ];
}

/** `v3`: a bare number among figures isn't seen to be a version. */
function named(versions) {
  return Object.fromEntries(Object.entries(versions).map(([version, count]) => [/^\d+$/.test(version) ? `v${version}` : version, count]));
}

/** Versions and numbers within them: v9 comes before v10. */
function newestFirst(a, b) {
  return b.localeCompare(a, "en", { numeric: true });
}
