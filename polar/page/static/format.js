/** Numbers, durations and instants as people read them. Unknown values are a dash. */

export const NONE = "–";

const WHOLE = new Intl.NumberFormat("en-GB");

/**
 * A whole number with separators: `12,345`.
 * @param {number|null|undefined} value
 * @returns {string}
 */
export function whole(value) {
  return value === null || value === undefined ? NONE : WHOLE.format(Math.round(value));
}

/**
 * A number in a few characters: `950`, `12.3k`, `4.5M`.
 * @param {number|null|undefined} value
 * @returns {string}
 */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e9) return `${trimmed(value / 1e9)}G`;
  if (size >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)}k`;
  return Number.isInteger(value) ? WHOLE.format(value) : trimmed(value);
}

/**
 * A reward: up to three decimals, without trailing zeros.
 * @param {number|null|undefined} value
 * @returns {string}
 */
export function reward(value) {
  return value === null || value === undefined ? NONE : String(Number(value.toFixed(3)));
}

/**
 * A logprob: two decimals.
 * @param {number|null|undefined} value
 * @returns {string}
 */
export function logprob(value) {
  return value === null || value === undefined ? NONE : value.toFixed(2);
}

/**
 * A share as per cent: `42 %`.
 * @param {number|null|undefined} value between 0 and 1
 * @returns {string}
 */
export function percent(value) {
  return value === null || value === undefined ? NONE : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

/**
 * A duration: `340 ms`, `12.3 s`, `4 min 12 s`, `1 h 04 min`.
 * @param {number|null|undefined} ms
 * @returns {string}
 */
export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${pad(Math.floor((seconds % 3600) / 60))} min`;
}

/**
 * The time of day, with the date if it isn't today: `14:03:22`, `26 Nov 14:03`.
 * @param {number|null|undefined} at Unix ms
 * @returns {string}
 */
export function instant(at) {
  if (at === null || at === undefined) return NONE;
  const date = new Date(at);
  if (date.toDateString() === new Date().toDateString()) return clock(at, true);
  return `${date.getDate()} ${date.toLocaleString("en-GB", { month: "short" })} ${clock(at)}`;
}

/**
 * Hours and minutes of an instant: `14:03`.
 * @param {number} at Unix ms
 * @param {boolean} [withSeconds]
 * @returns {string}
 */
export function clock(at, withSeconds = false) {
  const date = new Date(at);
  const minutes = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  return withSeconds ? `${minutes}:${pad(date.getSeconds())}` : minutes;
}

/**
 * A count with its noun: `1 call`, `3 calls`.
 * @param {number} count
 * @param {string} noun
 * @returns {string}
 */
export function counted(count, noun) {
  return `${WHOLE.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * A name from a program as words: `call_missing` is `call missing`.
 * @param {string} name
 * @returns {string}
 */
export function words(name) {
  return name.replaceAll("_", " ");
}

function trimmed(value) {
  if (Math.abs(value) >= 1000) return WHOLE.format(Math.round(value));
  return String(Number(value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2)));
}

function pad(value) {
  return String(value).padStart(2, "0");
}
