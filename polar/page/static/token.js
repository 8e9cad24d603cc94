/**
 * The page's token: from the address that was printed, or asked for once. It is kept for this browser tab (sessionStorage).
 *
 * It is never part of a request's URL: the printed address has it after `#`, which browsers send to nobody.
 */

import { h } from "./dom.js";

const KEY = "polar.token";

/** @type {Set<() => void>} who waits for a token */
const waiting = new Set();

/** @type {Promise<string|null>|null} the dialog that is open, which all who ask share */
let asking = null;

/** @returns {string|null} */
export function knownToken() {
  return sessionStorage.getItem(KEY);
}

/**
 * Take the token out of an address such as `/#token=…`: neither the address bar nor the history keeps it.
 * @returns {boolean} whether there was one
 */
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return false;
  if (token) sessionStorage.setItem(KEY, token);
  history.replaceState(null, "", location.pathname);
  return true;
}

/** @returns {Promise<void>} resolves once the user has given a token */
export function tokenKnown() {
  return knownToken() === null ? new Promise((resolve) => waiting.add(resolve)) : Promise.resolve();
}

/** Forget a token that the server refused. */
export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

/**
 * Ask the user for the token in a dialog.
 * @param {string} purpose what it is needed for
 * @param {string} refused why an earlier token was refused; empty: none was
 * @returns {Promise<string|null>} null: the user closed the dialog
 */
export function askToken(purpose, refused) {
  asking ??= dialogue(purpose, refused).finally(() => {
    asking = null;
  });
  return asking;
}

function dialogue(purpose, refused) {
  const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "token-title" }, purpose),
    h("p", { class: "quiet" }, "The address that ", h("code", null, "polar up"), " or ", h("code", null, "polar page"), " printed has it after ", h("code", null, "#token="), ". It is in the file ", h("code", null, "DIR/control.token"), " of ", h("code", null, "polar up"), ", new at each start, or else in the file that ", h("code", null, "POLAR_CONTROL_TOKEN_FILE"), " names. This tab keeps it until it is closed."),
    refused && h("p", { class: "problem", role: "alert" }, refused),
    h("label", { for: "token" }, "Token"),
    input,
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
      h("button", { type: "submit", class: "primary", value: "ok" }, "Continue"),
    ),
  );
  const dialog = h("dialog", { class: "ask", "aria-labelledby": "token-title" }, form);
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const token = dialog.returnValue === "ok" ? input.value.trim() : "";
      dialog.remove();
      if (token) {
        sessionStorage.setItem(KEY, token);
        for (const go of waiting) go();
        waiting.clear();
      }
      resolve(token || null);
    });
  });
}
