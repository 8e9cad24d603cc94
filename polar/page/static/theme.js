/** Light or dark: as the system has it, until the user switches. The choice stays in this browser. */

import { h, setText } from "./dom.js";

const KEY = "polar.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

/** Apply the stored choice; call it before the first paint. */
export function applyTheme() {
  const chosen = stored();
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

/** @returns {HTMLElement} the button that switches */
export function themeSwitch() {
  const sign = h("span", { "aria-hidden": "true" });
  const button = h("button", { type: "button", class: "plain", id: "theme", onclick: turn }, sign);
  const show = () => {
    const name = `Colours: ${stored()}`;
    setText(sign, SIGNS[stored()]);
    button.title = name;
    button.setAttribute("aria-label", `${name}. Change`);
  };
  function turn() {
    localStorage.setItem(KEY, NEXT[stored()]);
    applyTheme();
    show();
  }
  show();
  return button;
}

function stored() {
  const value = localStorage.getItem(KEY);
  return value !== null && Object.hasOwn(NEXT, value) ? value : "system";
}
