/**
 * Elements and SVG from plain values.
 *
 * Invariant: text becomes text nodes. No function of the page parses data as HTML.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element. `on…` properties are listeners, others attributes; null, undefined and false are left out.
 * @param {string} tag
 * @param {Object<string, unknown>|null} [properties]
 * @param {...unknown} children nodes, text, numbers, arrays of these; null and false are left out
 * @returns {HTMLElement}
 */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/**
 * An SVG element, as `h`.
 * @param {string} tag
 * @param {Object<string, unknown>|null} [properties]
 * @param {...unknown} children
 * @returns {SVGElement}
 */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/**
 * Replace all children of an element.
 * @param {Element} element
 * @param {...unknown} children as in `h`
 */
export function replace(element, ...children) {
  element.replaceChildren(...flat(children));
}

/**
 * Set the text of an element if it differs: an equal write would still cost a layout.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Say a sentence to a screen reader.
 * @param {string} text
 */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) place.textContent = text;
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}
