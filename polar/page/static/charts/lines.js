/** Lines over time. */

import { s } from "../dom.js";
import { short } from "../format.js";
import { axes, empty, figure, picture } from "./frame.js";
import { known } from "./scale.js";

/** @typedef {{name: string, tone: string, values: (number|null)[]}} Line `tone`: a class of style.css, `tone-1` … */

/**
 * A chart of lines. An unknown value is a gap.
 * @param {string} title
 * @param {number[]} times Unix ms, ascending
 * @param {Line[]} lines as long as `times`
 * @param {{write?: (value: number) => string, low?: number, high?: number, nothing?: string}} [options] `low`, `high`: the axis holds these at least; `nothing`: the words without a value
 * @returns {HTMLElement}
 */
export function linesChart(title, times, lines, { write = short, low = 0, high = 0, nothing = undefined } = {}) {
  const values = known(lines.flatMap((line) => line.values));
  if (values.length === 0) return empty(title, nothing);
  const { x, y, lines: marks } = axes(times, Math.min(low, ...values), Math.max(high, ...values));
  for (const line of lines) {
    marks.push(s("path", { class: `line ${line.tone}`, d: way(times, line.values, x, y) }));
    const last = line.values.findLastIndex((value) => value !== null && value !== undefined);
    if (last >= 0) marks.push(s("circle", { class: `dot ${line.tone}`, cx: x(times[last]), cy: y(line.values[last]), r: 2.5 }));
  }
  const words = (line, i) => `${lines.length > 1 ? `${line.name} ` : ""}${line.values[i] === null || line.values[i] === undefined ? "–" : write(line.values[i])}`;
  const ends = lines.map((line) => `${line.name} ${write(known(line.values).at(-1) ?? 0)}`).join(", ");
  const drawn = picture(`${title}: ${ends} at the end`, marks, times, x, (i) => lines.map((line) => words(line, i)).join("  "));
  return figure(title, drawn, lines.length > 1 ? lines : []);
}

function way(times, values, x, y) {
  let isDown = false;
  let written = "";
  times.forEach((at, i) => {
    const value = values[i];
    if (value === null || value === undefined) {
      isDown = false;
      return;
    }
    written += `${isDown ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    // A value between two gaps would have no length.
    if (!isDown) written += "h0.01";
    isDown = true;
  });
  return written;
}
