/** A histogram: how many values fell into each range. */

import { s } from "../dom.js";
import { reward, whole } from "../format.js";
import { empty, figure, HEIGHT, MARGIN, WIDTH } from "./frame.js";
import { linear, ticks } from "./scale.js";

/**
 * The rewards of the newest minutes.
 * @param {string} title
 * @param {{low: number|null, high: number|null, buckets: {reward_counts: number[]}[]}} series
 * @param {number} minutes
 * @returns {HTMLElement}
 */
export function histogramChart(title, { low, high, buckets }, minutes) {
  const counts = [];
  for (const { reward_counts: one } of buckets.slice(-minutes)) one.forEach((count, i) => (counts[i] = (counts[i] ?? 0) + count));
  const most = Math.max(0, ...counts);
  if (low === null || most === 0) return empty(title);
  const values = ticks(0, most).filter(Number.isInteger);
  const bottom = HEIGHT - MARGIN.bottom;
  const y = linear(0, values.at(-1), bottom, MARGIN.top);
  const x = linear(0, counts.length, MARGIN.left, WIDTH - MARGIN.right);
  const edge = (i) => low + ((high - low) * i) / counts.length;
  const marks = values.flatMap((value) => [
    s("line", { class: "rule", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value) }),
    s("text", { class: "tick end", x: MARGIN.left - 5, y: y(value) + 3.5 }, whole(value)),
  ]);
  counts.forEach((count, i) => {
    const range = s("title", null, `${whole(count)} rewards from ${reward(edge(i))} to ${reward(edge(i + 1))}`);
    marks.push(s("rect", { class: "bar-mark tone-1", x: x(i) + 0.5, width: x(i + 1) - x(i) - 1, y: y(count), height: bottom - y(count) }, range));
  });
  for (const [at, anchor] of [[0, ""], [counts.length / 2, "middle"], [counts.length, "end"]]) marks.push(s("text", { class: `tick ${anchor}`, x: x(at), y: HEIGHT - 5 }, reward(edge(at))));
  const total = counts.reduce((a, b) => a + b, 0);
  return figure(title, s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${whole(total)} rewards from ${reward(low)} to ${reward(high)}` }, marks));
}
