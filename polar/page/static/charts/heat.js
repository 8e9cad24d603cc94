/** A histogram over time: each column is a moment, each cell a range of values, darker where more fell into it. */

import { s } from "../dom.js";
import { axes, empty, figure, MARGIN, picture, WIDTH } from "./frame.js";
import { known } from "./scale.js";

const COLUMNS = 60;

/**
 * Rewards over time: the histogram with the mean as a line upon it.
 * @param {string} title
 * @param {{low: number, high: number, buckets: {at: number, mean_reward: number|null, reward_counts: number[]}[]}} series
 * @param {(value: number) => string} write
 * @returns {HTMLElement}
 */
export function heatChart(title, { low, high, buckets }, write) {
  const means = known(buckets.map((bucket) => bucket.mean_reward));
  if (means.length === 0) return empty(title);
  const merged = merge(buckets);
  const times = merged.map((column) => column.at);
  const { x, y, lines: marks } = axes(times, low, high);
  const width = (WIDTH - MARGIN.left - MARGIN.right) / Math.max(1, times.length - 1);
  for (const column of merged) {
    const most = Math.max(...column.counts, 1);
    const step = (high - low || 1) / column.counts.length;
    column.counts.forEach((count, i) => {
      if (!count) return;
      const top = y(low + (i + 1) * step);
      const bottom = y(low + i * step);
      const left = Math.max(MARGIN.left, x(column.at) - width / 2);
      const right = Math.min(WIDTH - MARGIN.right, x(column.at) + width / 2);
      marks.push(s("rect", { class: "heat", x: left, y: top, width: right - left, height: bottom - top, "fill-opacity": (0.15 + 0.6 * (count / most)).toFixed(2) }));
    });
  }
  let line = "";
  for (const column of merged) if (column.mean !== null) line += `${line ? "L" : "M"}${x(column.at).toFixed(1)} ${y(column.mean).toFixed(1)}`;
  marks.push(s("path", { class: "line tone-mean", d: line }));
  const words = (i) => (merged[i].mean === null ? "no reward" : `mean ${write(merged[i].mean)}, ${merged[i].counts.reduce((a, b) => a + b, 0)} rewards`);
  const summary = `${title}: the mean is ${write(means.at(-1))} at the end, ${write(means[0])} at the beginning`;
  return figure(title, picture(summary, marks, times, x, words), [{ name: "mean", tone: "tone-mean" }, { name: "sessions", tone: "heat-key" }]);
}

/** At most COLUMNS columns: neighbours are added up. */
function merge(buckets) {
  const each = Math.ceil(buckets.length / COLUMNS);
  const columns = [];
  for (let i = 0; i < buckets.length; i += each) {
    const part = buckets.slice(i, i + each);
    const counts = part[0].reward_counts.map((_, bin) => part.reduce((sum, bucket) => sum + (bucket.reward_counts[bin] ?? 0), 0));
    const rewarded = part.filter((bucket) => bucket.mean_reward !== null);
    const weights = rewarded.map((bucket) => bucket.reward_counts.reduce((a, b) => a + b, 0) || 1);
    const total = weights.reduce((a, b) => a + b, 0);
    const mean = rewarded.length ? rewarded.reduce((sum, bucket, at) => sum + bucket.mean_reward * weights[at], 0) / total : null;
    columns.push({ at: part[0].at, counts, mean });
  }
  return columns;
}
