/**
 * What the page knows of the running system: rows of sessions, and the overview.
 *
 * Invariant: at most LIMIT rows, each one object that changes in place. Listeners are called once a frame, however many messages came since the last one.
 */

export const LIMIT = 10_000;
const BUCKETS = 180; // three hours of minutes

/** @typedef {Object<string, any>} SessionRow a row of `GET /api/sessions` */

/** @type {Map<string, SessionRow>} */
const rows = new Map();
/** @type {SessionRow[]|null} null: must be sorted again */
let sorted = null;
let overview = null;
let connection = "connecting";
let problem = "";
let revision = 0;
const listeners = new Set();
let changes = new Set();
let frame = 0;

/**
 * Add or change rows. Those that changed longest ago go when there are too many.
 * @param {SessionRow[]} changed
 */
export function putSessions(changed) {
  for (const row of changed) {
    const known = rows.get(row.session_id);
    if (known && known.changed_at > row.changed_at) continue;
    if (!known || known.submitted_at !== row.submitted_at) sorted = null;
    if (known) Object.assign(known, row);
    else rows.set(row.session_id, row);
  }
  if (rows.size > LIMIT) {
    const byChange = [...rows.values()].sort((a, b) => b.changed_at - a.changed_at);
    for (const row of byChange.slice(LIMIT)) rows.delete(row.session_id);
    sorted = null;
  }
  revision += 1;
  changedNow("sessions");
}

/** @param {any} next the document of `GET /api/overview` */
export function putOverview(next) {
  overview = next;
  changedNow("overview");
}

/**
 * Merge an overview of the stream, which has only the newest buckets of each run.
 * @param {any} next
 * @returns {boolean} false: earlier buckets changed, so the whole overview must be read again
 */
export function mergeOverview(next) {
  // While the log was being read, minutes went by between two messages.
  let isWhole = overview !== null && ((overview.live.reading ?? null) === null || (next.live.reading ?? null) !== null);
  const series = {};
  for (const [run, newest] of Object.entries(next.series)) {
    const known = overview?.series[run];
    if (known && (known.low !== newest.low || known.high !== newest.high)) isWhole = false;
    const from = newest.buckets[0]?.at ?? Infinity;
    const earlier = known ? known.buckets.filter((bucket) => bucket.at < from) : [];
    series[run] = { ...newest, buckets: [...earlier, ...newest.buckets].slice(-BUCKETS) };
  }
  overview = { ...next, series };
  changedNow("overview");
  return isWhole;
}

/**
 * @param {"connecting"|"live"|"away"} next
 * @param {string} [why] the error that ended the connection
 */
export function putConnection(next, why = "") {
  if (connection === next && problem === why) return;
  connection = next;
  problem = why;
  changedNow("connection");
}

/** @returns {SessionRow[]} the newest submitted first; not to be changed */
export function sessions() {
  sorted ??= [...rows.values()].sort((a, b) => b.submitted_at - a.submitted_at || (a.session_id < b.session_id ? -1 : 1));
  return sorted;
}

/**
 * @param {string} id
 * @returns {SessionRow|undefined}
 */
export function session(id) {
  return rows.get(id);
}

/** @returns {any} the newest overview; null before the first */
export function latestOverview() {
  return overview;
}

/** @returns {"connecting"|"live"|"away"} */
export function connectionState() {
  return connection;
}

/** @returns {string} the error that ended the connection; empty: none is known */
export function connectionProblem() {
  return problem;
}

/** @returns {number} grows with each change of a row */
export function sessionsRevision() {
  return revision;
}

/**
 * Call `listener` with the set of what changed: "sessions", "overview", "connection".
 * @param {(changed: Set<string>) => void} listener
 * @returns {() => void} ends it
 */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changedNow(name) {
  changes.add(name);
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const changed = changes;
    changes = new Set();
    for (const listener of [...listeners]) listener(changed);
  });
}
