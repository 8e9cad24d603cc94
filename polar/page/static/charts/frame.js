/** What the charts over time share: the frame, the axes, and the readout under the pointer. */

import { h, replace, s } from "../dom.js";
import { clock } from "../format.js";
import { linear, tickLabels, ticks } from "./scale.js";

export const WIDTH = 420;
export const HEIGHT = 132;
export const MARGIN = { left: 40, right: 8, top: 8, bottom: 20 };

/**
 * A figure with a title, a key and the picture.
 * @param {string} title
 * @param {SVGElement|HTMLElement} picture
 * @param {{name: string, tone: string}[]} [key]
 * @returns {HTMLElement}
 */
export function figure(title, picture, key = []) {
  const entries = key.map(({ name, tone }) => h("span", null, h("i", { class: `swatch ${tone}` }), name));
  return h("figure", { class: "chart" }, h("figcaption", null, h("span", null, title), h("span", { class: "key" }, entries)), picture);
}

/**
 * Axes of a chart: horizontal lines with their values, times below.
 * @param {number[]} times Unix ms, ascending
 * @param {number} low
 * @param {number} high
 * @returns {{x: (at: number) => number, y: (value: number) => number, lines: SVGElement[]}}
 */
export function axes(times, low, high) {
  const values = ticks(low, high);
  const bottom = HEIGHT - MARGIN.bottom;
  const y = linear(values[0], values.at(-1), bottom, MARGIN.top);
  const x = linear(times[0] ?? 0, times.at(-1) ?? 1, MARGIN.left, WIDTH - MARGIN.right);
  const labels = tickLabels(values);
  const lines = values.flatMap((value, i) => [
    s("line", { class: "rule", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value) }),
    s("text", { class: "tick end", x: MARGIN.left - 5, y: y(value) + 3.5 }, labels[i]),
  ]);
  const shown = times.length > 1 ? [times[0], times[Math.floor(times.length / 2)], times.at(-1)] : times;
  const anchors = ["", "middle", "end"];
  shown.forEach((at, i) => lines.push(s("text", { class: `tick ${anchors[i]}`, x: x(at), y: HEIGHT - 5 }, clock(at))));
  return { x, y, lines };
}

/**
 * The picture's element; reads out the nearest moment under the pointer.
 * @param {string} summary what the picture shows, as a sentence
 * @param {SVGElement[]} marks
 * @param {number[]} times
 * @param {(at: number) => number} x
 * @param {(index: number) => string} readout
 * @returns {SVGElement}
 */
export function picture(summary, marks, times, x, readout) {
  const line = s("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
  const words = s("text", { class: "readout", y: MARGIN.top + 9 });
  const element = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary }, marks, line, words);
  element.addEventListener("pointermove", (event) => {
    const box = element.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const index = nearest(times, x, at);
    if (index < 0) return;
    const place = x(times[index]);
    line.setAttribute("x1", place);
    line.setAttribute("x2", place);
    line.setAttribute("visibility", "visible");
    const isLeft = place < WIDTH / 2;
    words.setAttribute("x", isLeft ? place + 6 : place - 6);
    words.setAttribute("text-anchor", isLeft ? "start" : "end");
    replace(words, `${clock(times[index])}  ${readout(index)}`);
  });
  element.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    replace(words);
  });
  return element;
}

/**
 * The words in the place of a chart without data.
 * @param {string} title
 * @param {string} [why] there is none
 * @returns {HTMLElement}
 */
export function empty(title, why = "nothing yet") {
  return figure(title, h("p", { class: "quiet none" }, why));
}

function nearest(times, x, at) {
  let found = -1;
  times.forEach((time, i) => {
    if (found < 0 || Math.abs(x(time) - at) < Math.abs(x(times[found]) - at)) found = i;
  });
  return found;
}
