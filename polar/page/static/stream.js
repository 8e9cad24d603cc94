/**
 * Feeds the store: all live sessions at each connection, then what changes after them. A lost connection is made again.
 *
 * A hidden tab has none: a browser allows six connections to one host, and six open tabs would leave none for a request.
 */

import { get } from "./api.js";
import { readEvents } from "./events.js";
import { LIMIT, mergeOverview, putConnection, putOverview, putSessions } from "./store.js";
import { tokenKnown } from "./token.js";

const FIRST = 500; // enough for the first screen
const AGAIN_MS = 2000;
const SILENT_MS = 40_000; // a ping comes each 15 s

/** Connect, and stay connected as long as the page is open. */
export async function startStream() {
  for (;;) {
    await shown();
    const attempt = new AbortController();
    const hide = () => document.hidden && attempt.abort();
    document.addEventListener("visibilitychange", hide);
    let problem = null;
    try {
      await connect(attempt);
    } catch (error) {
      problem = error;
    }
    document.removeEventListener("visibilitychange", hide);
    attempt.abort();
    if (document.hidden) continue;
    putConnection("away", problem === null || problem.name === "AbortError" ? "" : problem.message);
    // The user has closed the question for the token: another one must not follow at once.
    if (problem?.status === 401) await tokenKnown();
    else await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

async function shown() {
  while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

async function connect(attempt) {
  const [first] = await Promise.all([get("/api/sessions", { limit: FIRST }, attempt.signal), wholeOverview(attempt.signal)]);
  putSessions(first.sessions);
  putConnection("live");
  let timer = 0;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => attempt.abort(), SILENT_MS);
  };
  heard();
  const reading = readEvents(
    `/api/stream?since=${first.version}`,
    (name, data) => {
      heard();
      if (name === "sessions") putSessions(JSON.parse(data).sessions);
      else if (name === "overview" && !mergeOverview(JSON.parse(data))) wholeOverview(attempt.signal).catch(() => undefined);
    },
    attempt.signal,
  );
  try {
    if (first.next !== null) await Promise.race([reading, rest(first.next, attempt.signal)]);
    await reading;
  } finally {
    clearTimeout(timer);
  }
}

/** The rows after the first page. */
async function rest(after, signal) {
  const page = await get("/api/sessions", { limit: LIMIT - FIRST, after }, signal);
  putSessions(page.sessions);
}

/** @param {AbortSignal} signal */
async function wholeOverview(signal) {
  putOverview(await get("/api/overview", {}, signal));
}
