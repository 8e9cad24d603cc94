/** The state of the system in the bar: the connection, the fleet, and the button that pauses or resumes it. */

import { path, post } from "./api.js";
import { announce, h, replace, setText } from "./dom.js";
import { duration, percent } from "./format.js";
import { connectionProblem, connectionState, latestOverview, subscribe } from "./store.js";

const CONNECTION = { live: "live", connecting: "connecting …", away: "no answer" };

/** @returns {HTMLElement} */
export function fleetControls() {
  const dot = h("i", { class: "state-dot" });
  const words = h("span", null);
  const button = h("button", { type: "button", class: "plain", hidden: true, onclick: turn });
  const problem = h("span", { class: "problem", role: "alert" });
  const element = h("div", { class: "fleet" }, problem, h("span", { class: "state", id: "connection" }, dot, words), button);

  async function turn() {
    const isPaused = latestOverview().live.paused;
    replace(problem);
    try {
      await post(path("fleet", isPaused ? "resume" : "pause"), {}, isPaused ? "Resume the fleet" : "Pause the fleet");
      announce(isPaused ? "The fleet resumes." : "The fleet pauses.");
    } catch (error) {
      if (error.status !== 401) replace(problem, error.message);
    }
  }

  function draw() {
    const live = latestOverview()?.live;
    const { tone, text } = stateOf(connectionState(), live);
    dot.className = `state-dot ${tone}`;
    setText(words, text);
    button.hidden = !live;
    setText(button, live?.paused ? "Resume" : "Pause");
  }

  subscribe((changed) => {
    if (changed.has("overview") || changed.has("connection")) draw();
  });
  draw();
  return element;
}

function stateOf(connection, live) {
  if (connection !== "live" || !live) return { tone: connection === "away" ? "bad" : "wait", text: connectionProblem() || CONNECTION[connection] };
  if (live.away_s !== null && live.away_s !== undefined) return { tone: "bad", text: `Kafka hasn't answered for ${duration(live.away_s * 1000)}` };
  if (live.reading !== null && live.reading !== undefined) return { tone: "wait", text: `reading the log, ${percent(live.reading)}` };
  if (live.paused) return { tone: "wait", text: live.paused_since ? `paused for ${duration(Math.max(0, live.at - live.paused_since))}` : "paused" };
  if (live.draining) return { tone: "wait", text: "draining" };
  return { tone: "good", text: CONNECTION.live };
}
