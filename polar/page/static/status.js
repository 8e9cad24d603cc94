/** A session's status, or its phase while it hasn't ended, as a label. */

import { h } from "./dom.js";

const TONES = { COMPLETED: "good", FAILED: "bad", TIMED_OUT: "warn", CANCELLED: "mute" };

/**
 * @param {{status: string|null, phase: string}} row
 * @returns {{text: string, tone: string}}
 */
export function statusOf(row) {
  if (row.status && row.phase === "ended") return { text: row.status, tone: TONES[row.status] ?? "mute" };
  return { text: row.phase, tone: "live" };
}

/**
 * @param {{status: string|null, phase: string}} row
 * @returns {HTMLElement}
 */
export function statusChip(row) {
  const { text, tone } = statusOf(row);
  return h("span", { class: `chip ${tone}` }, text);
}
