/**
 * Keyboard: one listener for the page. A view gives its keys while it is shown.
 *
 * Keys do nothing while one types, except Esc, which leaves the field.
 */

import { h } from "./dom.js";
import { go } from "./router.js";

const SEQUENCE_MS = 1200;

/** @typedef {{keys: string, does: string, run: (event: KeyboardEvent) => void}} Binding `keys`: as typed, `g r` in sequence */

/** @type {Binding[]} */
let ofView = [];
let waitingUntil = 0;

/** @type {Binding[]} */
const EVERYWHERE = [
  { keys: "g r", does: "go to the runs", run: () => go("#/runs") },
  { keys: "g s", does: "go to the sessions", run: () => go("#/sessions") },
  { keys: "g q", does: "go to SQL", run: () => go("#/sql") },
  { keys: "/", does: "filter the sessions", run: filter },
  { keys: "Esc", does: "leave a field, a dialog or a session", run: leave },
  { keys: "?", does: "show these keys", run: showKeys },
];

/** @param {Binding[]} bindings of the view that is shown now; they come before those of the page */
export function bindView(bindings) {
  ofView = bindings;
}

/** Listen. */
export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const pressed = event.key === "Escape" ? "Esc" : event.key;
    const now = performance.now();
    const keys = now < waitingUntil ? `g ${pressed}` : pressed;
    waitingUntil = keys === "g" ? now + SEQUENCE_MS : 0;
    const found = [...ofView, ...EVERYWHERE].find((binding) => binding.keys.split(", ").includes(keys));
    if (!found || (keys === "Enter" && event.target.closest?.("a, button, summary"))) return;
    event.preventDefault();
    found.run(event);
  });
}

/** Show a dialog of the keys that work now. */
export function showKeys() {
  const rows = [...ofView, ...EVERYWHERE].map(({ keys, does }) =>
    h("div", null, h("dt", null, keys.split(/, | /).map((key) => h("kbd", null, key))), h("dd", null, does)),
  );
  const dialog = h(
    "dialog",
    { class: "keys", "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Keys"),
    h("dl", null, rows),
    h("form", { method: "dialog", class: "buttons" }, h("button", { autofocus: true }, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function filter() {
  const field = document.getElementById("filter");
  if (field) field.focus();
  else go("#/sessions?focus=1");
}

function leave() {
  if (document.activeElement && document.activeElement !== document.body) document.activeElement.blur();
}

function typing(target) {
  return target instanceof Element && target.matches("input, textarea, select, [contenteditable]");
}
