/** Scales and ticks of the charts. */

import { short } from "../format.js";

const LEAST = 1e-9; // doubles have 16 digits: a smaller step would be lost in `i * step`
const MOST = 50;

/**
 * Round values that cover a range: `ticks(0, 0.9)` is 0, 0.2, … 1.
 * @param {number} low
 * @param {number} high
 * @param {number} [count] about how many
 * @returns {number[]} two to MOST; values that differ by less than LEAST of their size are as good as equal
 */
export function ticks(low, high, count = 4) {
  const magnitude = Math.max(Math.abs(low), Math.abs(high));
  const size = high - low > magnitude * LEAST ? high - low : magnitude || 1;
  const rough = size / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  const first = Math.floor(low / step + 1e-9);
  for (let i = first; found.length < 2 || (found.length < MOST && (i - 1) * step < high - step * 1e-9); i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/**
 * The labels of ticks, all different: short ones, or if two of these are equal, whole ones.
 * @param {number[]} values
 * @returns {string[]}
 */
export function tickLabels(values) {
  const labels = values.map(short);
  return new Set(labels).size < labels.length ? values.map(String) : labels;
}

/**
 * A linear map from a domain to pixels.
 * @param {number} low
 * @param {number} high
 * @param {number} from
 * @param {number} to
 * @returns {(value: number) => number}
 */
export function linear(low, high, from, to) {
  const size = high - low || 1;
  return (value) => from + ((value - low) / size) * (to - from);
}

/**
 * The known values of a list.
 * @param {(number|null|undefined)[]} values
 * @returns {number[]}
 */
export function known(values) {
  return values.filter((value) => value !== null && value !== undefined && Number.isFinite(value));
}
