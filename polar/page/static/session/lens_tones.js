/** What the colour of a token says: its mask, its logprob, its version, or how far its re-scored logprob is. */

const EDGES = [-0.05, -0.5, -1.5, -3]; // natural logarithms: 95 %, 61 %, 22 %, 5 %
const DRIFTS = [0.01, 0.05, 0.2, 0.5];

/** @type {{name: string, title: string, key: [string, string][]}[]} */
export const TONINGS = [
  { name: "mask", title: "mask", key: [["trained", "trained"], ["masked", "sampled, not trained"], ["read", "read"]] },
  { name: "logprob", title: "logprob", key: [["level-0", "certain"], ["level-1", "≤ 95 %"], ["level-2", "≤ 61 %"], ["level-3", "≤ 22 %"], ["level-4", "≤ 5 %"], ["read", "none"]] },
  { name: "version", title: "policy version", key: [["version-0", "versions"], ["version-1", "in"], ["version-2", "turn"], ["read", "none"]] },
  { name: "scored", title: "re-scored difference", key: [["level-0", "< 0.01"], ["level-1", "< 0.05"], ["level-2", "< 0.2"], ["level-3", "< 0.5"], ["level-4", "more"], ["read", "not re-scored"]] },
];

/**
 * The class of a token.
 * @param {string} toning one of the names in TONINGS
 * @param {any} token of `GET /api/sessions/ID/tokens`
 * @returns {string}
 */
export function toneOf(toning, token) {
  if (toning === "logprob") return token.logprob === null ? "read" : `level-${EDGES.filter((edge) => token.logprob <= edge).length}`;
  if (toning === "version") return token.version === null ? "read" : `version-${token.version % 3}`;
  if (toning === "scored") {
    if (token.scored === null || token.logprob === null) return "read";
    const drift = Math.abs(token.scored - token.logprob);
    return `level-${DRIFTS.filter((edge) => drift >= edge).length}`;
  }
  if (token.trained) return "trained";
  return token.reason ? "masked" : "read";
}
