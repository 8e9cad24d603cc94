/** The address after `#` names what is shown: `#/sessions/ID/calls/3?q=…`. */

/** @typedef {{parts: string[], query: URLSearchParams}} Address */

/**
 * Read an address.
 * @param {string} hash
 * @returns {Address}
 */
export function parse(hash) {
  const [way, search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { parts: way.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(search) };
}

/**
 * Write an address.
 * @param {(string|number)[]} parts
 * @param {Object<string, string|number|null|undefined>} [query] null, undefined and empty values are left out
 * @returns {string}
 */
export function href(parts, query = {}) {
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${search ? `?${search}` : ""}`;
}

/** @returns {Address} */
export function here() {
  return parse(location.hash);
}

/** @param {string} address as `href` writes it */
export function go(address) {
  location.hash = address;
}

/**
 * Change the address without drawing anew, and without a step in the browser's history.
 * @param {string} address
 */
export function rewrite(address) {
  history.replaceState(null, "", address);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
