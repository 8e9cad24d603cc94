/** A place that is filled once its document is there. */

import { h, replace } from "./dom.js";

/**
 * Fill an element with what a promise leads to; an error is said in its place.
 * @param {HTMLElement} element
 * @param {() => Promise<unknown>} load resolves to the content
 * @returns {Promise<void>}
 */
export async function fillWith(element, load) {
  element.setAttribute("aria-busy", "true");
  try {
    replace(element, await load());
  } catch (error) {
    if (error.name === "AbortError") return;
    replace(element, problem(error));
  }
  element.removeAttribute("aria-busy");
}

/**
 * An error in words.
 * @param {Error} error
 * @returns {HTMLElement}
 */
export function problem(error) {
  return h("p", { class: "problem pad", role: "alert" }, error.message);
}
