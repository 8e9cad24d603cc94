/** The page's frame: the bar, the address, and the view that it names. */

import { announce, h, replace } from "./dom.js";
import { fleetControls } from "./fleet.js";
import { bindView, showKeys, startKeys } from "./keys.js";
import { here } from "./router.js";
import { startStream } from "./stream.js";
import { applyTheme, themeSwitch } from "./theme.js";
import { takeToken } from "./token.js";
import { groupView } from "./views/group.js";
import { runsView } from "./views/runs.js";
import { sessionView } from "./views/session.js";
import { sessionsView } from "./views/sessions.js";
import { sqlView } from "./views/sql.js";

/**
 * @typedef {Object} View
 * @property {string} title for the browser's tab
 * @property {HTMLElement} element
 * @property {import("./keys.js").Binding[]} [keys]
 * @property {(address: import("./router.js").Address) => boolean} [update] the address changed; false: make the view anew
 * @property {() => void} [stop] it is shown no longer
 */

/** @type {View|null} */
let shown = null;
let place = "";

function route() {
  const address = here();
  const [name = "runs", id = ""] = address.parts;
  const next = `${name}/${name === "runs" || name === "sql" ? "" : id}`;
  if (shown?.update && next === place && shown.update(address)) return;
  shown?.stop?.();
  place = next;
  const made = make(name, id, address);
  shown = made;
  document.title = `${made.title} · Polar`;
  for (const link of document.querySelectorAll(".bar nav a")) {
    const isHere = link.dataset.view === (name === "tasks" ? "sessions" : name);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  bindView(made.keys ?? []);
  replace(document.getElementById("main"), made.element);
  announce(made.title);
}

/** @returns {View} */
function make(name, id, address) {
  if (name === "runs") return runsView(address);
  if (name === "sessions" && id) return sessionView(address);
  if (name === "sessions") return sessionsView(address);
  if (name === "tasks" && id) return groupView(address);
  if (name === "sql") return sqlView(address);
  return { title: "Nothing here", element: h("p", { class: "pad" }, "There is no such view. ", h("a", { href: "#/runs" }, "Runs")) };
}

takeToken();
applyTheme();
document
  .getElementById("bar-end")
  .append(fleetControls(), themeSwitch(), h("button", { type: "button", class: "plain", "aria-label": "Keys", title: "Keys (?)", onclick: showKeys }, "?"));
startKeys();
addEventListener("hashchange", () => {
  if (takeToken()) location.reload(); // somebody pasted the printed address into an open tab
  else route();
});
route();
void startStream();
