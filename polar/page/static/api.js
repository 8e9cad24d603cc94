/** Requests to the server of the page. The token goes along once it is known; a 401 asks the user for it. */

import { askToken, forgetToken, knownToken } from "./token.js";

/** An answer of the server that isn't a success. */
export class ApiError extends Error {
  /**
   * @param {number} status HTTP status, 0 if the server can't be reached
   * @param {string} code
   * @param {string} message
   */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const READ = "The page needs the control token";

/**
 * GET a JSON document.
 * @param {string} path
 * @param {Object<string, string|number|null|undefined>} [query] null and undefined are left out
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, query = {}, signal = undefined) {
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const search = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return (await request(search ? `${path}?${search}` : path, { signal })).json();
}

/**
 * POST a JSON document.
 * @param {string} path
 * @param {unknown} body
 * @param {string} [purpose] what the user is about to do, for the question about the token
 * @returns {Promise<any>}
 */
export async function post(path, body, purpose = READ) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return (await request(path, options, purpose)).json();
}

/**
 * A request that succeeded; the body isn't read yet.
 * @param {string} url
 * @param {RequestInit} [options]
 * @param {string} [purpose]
 * @returns {Promise<Response>} throws ApiError
 */
export async function request(url, options = {}, purpose = READ) {
  for (;;) {
    const token = knownToken();
    const headers = token === null ? options.headers : { ...options.headers, Authorization: `Bearer ${token}` };
    const response = await reached(url, { ...options, headers }, purpose === READ);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status !== 401) throw error;
    if (token !== null && token === knownToken()) forgetToken();
    if (knownToken() === null && (await askToken(purpose, token === null ? "" : error.message)) === null) throw error;
  }
}

/**
 * The path of a document of the API.
 * @param {...string} parts
 * @returns {string}
 */
export function path(...parts) {
  return `/api/${parts.map(encodeURIComponent).join("/")}`;
}

async function reached(url, options, mayRepeat) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // A browser drops its connections when a network interface comes or goes. Reading again does no harm.
    if (mayRepeat) return reached(url, options, false);
    throw new ApiError(0, "unreachable", "The server of this page doesn't answer. Is `polar up` or `polar page` running?");
  }
}

async function errorOf(response) {
  const { error } = (await response.json().catch(() => null)) ?? {};
  const message = error?.message ?? `The server answered with status ${response.status}.`;
  return new ApiError(response.status, error?.code ?? "http", error?.field ? `${error.field}: ${message}` : message);
}
