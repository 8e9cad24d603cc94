/** Amounts by kind over time, on top of one another. */

import { s } from "../dom.js";
import { short } from "../format.js";
import { axes, empty, figure, HEIGHT, MARGIN, picture, WIDTH } from "./frame.js";

const TONES = 6;

/**
 * A chart of stacked bars. The first kinds have a tone of their own, the others are one.
 * @param {string} title
 * @param {number[]} times Unix ms, ascending
 * @param {Object<string, number>[]} amounts by kind, as long as `times`
 * @param {(a: string, b: string) => number} [order] of the kinds; the largest come first without it
 * @param {string} [nothing] the words without an amount
 * @returns {HTMLElement}
 */
export function stacksChart(title, times, amounts, order = undefined, nothing = undefined) {
  const totals = {};
  for (const one of amounts) for (const [kind, amount] of Object.entries(one)) totals[kind] = (totals[kind] ?? 0) + amount;
  const kinds = Object.keys(totals).sort(order ?? ((a, b) => totals[b] - totals[a]));
  if (kinds.length === 0) return empty(title, nothing);
  const shown = kinds.length > TONES ? [...kinds.slice(0, TONES - 1), "others"] : kinds;
  const of = (one, kind) =>
    kind === "others" ? kinds.slice(TONES - 1).reduce((sum, name) => sum + (one[name] ?? 0), 0) : (one[kind] ?? 0);
  const tops = amounts.map((one) => Object.values(one).reduce((sum, amount) => sum + amount, 0));
  const { x, y, lines: marks } = axes(times, 0, Math.max(...tops));
  const width = Math.max(1.5, ((WIDTH - MARGIN.left - MARGIN.right) / times.length) * 0.8);
  amounts.forEach((one, i) => {
    let from = 0;
    shown.forEach((kind, tone) => {
      const amount = of(one, kind);
      if (!amount) return;
      const left = Math.max(MARGIN.left, Math.min(x(times[i]) - width / 2, WIDTH - MARGIN.right - width));
      marks.push(s("rect", { class: `bar-mark tone-${tone + 1}`, x: left, width, y: y(from + amount), height: y(from) - y(from + amount) }));
      from += amount;
    });
  });
  const words = (i) => shown.filter((kind) => of(amounts[i], kind)).map((kind) => `${kind} ${short(of(amounts[i], kind))}`).join("  ") || "none";
  const summary = `${title}: ${shown.map((kind) => `${kind} ${short(kind === "others" ? kinds.slice(TONES - 1).reduce((sum, name) => sum + totals[name], 0) : totals[kind])}`).join(", ")} in total`;
  const drawn = picture(summary, [...marks, s("line", { class: "base", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: HEIGHT - MARGIN.bottom, y2: HEIGHT - MARGIN.bottom })], times, x, words);
  return figure(title, drawn, shown.map((name, tone) => ({ name, tone: `tone-${tone + 1}` })));
}
