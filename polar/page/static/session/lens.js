/**
 * The token lens: each token of a trace as the trainer gets it, with mask, logprob, version, reason and re-scored logprob.
 *
 * Invariant: at most PAGE tokens are elements. One token is active; arrow keys move it, its facts stand beside the text.
 */

import { get, path } from "../api.js";
import { h, replace, setText } from "../dom.js";
import { logprob, NONE, whole } from "../format.js";
import { fillWith } from "../loading.js";
import { go, here, href, rewrite } from "../router.js";
import { TONINGS, toneOf } from "./lens_tones.js";

const PAGE = 2000;

/**
 * @param {any} document of `GET /api/sessions/ID`
 * @returns {HTMLElement}
 */
export function lensView(document) {
  const traces = document.traces ?? [];
  if (traces.length === 0) return h("p", { class: "quiet" }, document.traces ? "No trace: nothing of this session is trained." : "The trajectory isn't written yet.");
  const { query } = here();
  const trace = Math.min(traces.length - 1, Number(query.get("trace") ?? 0));
  const position = query.has("position") ? Number(query.get("position")) : null;
  const start = Number(query.get("start") ?? pageOf(position ?? 0));
  const at = (next) => href(["sessions", document.session_id, "tokens"], { trace, start, by: query.get("by"), ...next });
  const select = h("select", { id: "trace", onchange: () => go(at({ trace: select.value, start: 0 })) }, traces.map((one, i) => h("option", { value: i }, `${i + 1}: ${one.kind}, ${whole(one.tokens)} tokens`)));
  select.value = String(trace);
  const by = h("select", { id: "by" }, TONINGS.map(({ name, title }) => h("option", { value: name }, title)));
  by.value = query.get("by") ?? TONINGS[0].name;
  const place = h("div", null, h("p", { class: "quiet" }, "Loading …"));
  const controls = h("div", { class: "lens-controls" }, h("label", { for: "trace" }, "Trace"), select, h("label", { for: "by" }, "Colour by"), by);
  void fillWith(place, async () => {
    const page = await get(path("sessions", document.session_id, "tokens"), { trace, start, limit: PAGE });
    return lens(document.session_id, page, { start, position }, by, at);
  });
  return h("div", { class: "lens" }, controls, place);
}

/** The start of the page that holds the token at a position. */
function pageOf(position) {
  return Math.floor(position / PAGE) * PAGE;
}

/** `start`: position of the page's first token. `position`: that of the token that is active at first; null: the first of the page. */
function lens(id, page, { start, position }, by, at) {
  const side = h("aside", { class: "token-facts", "aria-label": "The active token", "aria-live": "polite" });
  const key = h("p", { class: "key lens-key" });
  const elements = page.tokens.map((token, i) => h("span", { role: "option", id: `token-${i}`, "aria-selected": "false", "aria-label": spoken(token), "data-id": token.id, "data-i": i }, shown(token.text, token.id)));
  const text = h("div", { class: "tokens", role: "listbox", tabindex: "0", "aria-label": "Tokens", onclick: clicked, onkeydown: moved }, elements);
  let active = -1;

  function paint() {
    page.tokens.forEach((token, i) => {
      elements[i].className = `token ${toneOf(by.value, token)}`;
    });
    const { key: entries } = TONINGS.find(({ name }) => name === by.value);
    replace(key, entries.map(([tone, words]) => h("span", null, h("i", { class: `swatch token ${tone}` }), words)));
  }

  function activate(index, block = "nearest") {
    if (index < 0 || index >= elements.length) return;
    elements[active]?.setAttribute("aria-selected", "false");
    active = index;
    elements[active].setAttribute("aria-selected", "true");
    text.setAttribute("aria-activedescendant", elements[active].id);
    elements[active].scrollIntoView({ block });
    replace(side, facts(id, page.tokens[active], start + active));
  }

  function clicked(event) {
    const token = event.target.closest(".token");
    if (token) activate(Number(token.dataset.i));
  }

  function moved(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    activate(active < 0 ? 0 : Math.max(0, Math.min(elements.length - 1, active + step)));
  }

  function firstTrained() {
    const index = page.first_trained - start;
    const address = at({ start: null, position: page.first_trained });
    return h("a", { class: "first-trained", href: address, onclick: jump }, "first trained token");
    /** Without a request if the page has the token. */
    function jump(event) {
      if (index < 0 || index >= elements.length || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      rewrite(address);
      activate(index, "center");
      text.focus({ preventScroll: true });
    }
  }

  by.addEventListener("change", paint);
  paint();
  if (position === null) activate(0);
  // The text is not in the document before this function has returned.
  else requestAnimationFrame(() => activate(position - start, "center"));
  const end = start + page.tokens.length;
  const pages = h(
    "nav",
    { class: "pages", "aria-label": "Pages of tokens" },
    start > 0 && h("a", { href: at({ start: Math.max(0, start - PAGE) }) }, "← before"),
    h("span", { class: "quiet" }, `${whole(start)} to ${whole(end)} of ${whole(page.total)} tokens`),
    end < page.total && h("a", { href: at({ start: end }) }, "after →"),
  );
  return [page.no_text && h("p", { class: "notice" }, `Tokens are shown as ids: ${page.no_text}`), h("p", { class: "quiet" }, summary(page.tokens), page.first_trained !== null && [" · ", firstTrained()]), key, h("div", { class: "lens-columns" }, h("div", null, text, pages), side)];
}

function facts(id, token, position) {
  const difference = token.logprob !== null && token.scored !== null ? token.scored - token.logprob : null;
  const rows = [
    ["position", whole(position)],
    ["token id", String(token.id)],
    ["text", token.text === null ? NONE : JSON.stringify(token.text)],
    ["mask", token.trained ? "1, trained" : "0"],
    ["why not trained", token.trained ? NONE : (token.reason ?? "read by the model, not sampled")],
    ["logprob", precise(token.logprob)],
    ["probability", token.logprob === null ? NONE : precise(Math.exp(token.logprob))],
    ["re-scored", token.scored === null ? NONE : precise(token.scored)],
    ["difference", precise(difference)],
    ["policy version", token.version === null ? NONE : String(token.version)],
  ];
  return [
    h("dl", { class: "facts" }, rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
    token.call !== null && h("p", null, h("a", { href: href(["sessions", id, "calls", token.call]) }, `call ${token.call}`)),
  ];
}

function precise(value) {
  return value === null || value === undefined ? NONE : value.toFixed(4);
}

function summary(tokens) {
  const trained = tokens.filter((token) => token.trained).length;
  const reasons = new Map();
  for (const { trained: is, reason } of tokens) if (!is && reason) reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
  const mean = tokens.filter((token) => token.trained && token.logprob !== null);
  const written = [`${whole(trained)} of these ${whole(tokens.length)} tokens trained`, ...[...reasons].map(([reason, count]) => `${whole(count)} sampled, not trained: ${reason}`)];
  if (mean.length) written.push(`mean logprob ${logprob(mean.reduce((sum, token) => sum + token.logprob, 0) / mean.length)}`);
  return written.join(" · ");
}

/** A name for a token that shows no letter; others are their text. */
function spoken(token) {
  return /[\p{L}\p{N}]/u.test(token.text ?? "") ? null : JSON.stringify(token.text || `token ${token.id}`);
}

/** A line end is seen and breaks the line. A token without text, such as half a character, is its id. */
function shown(text, id) {
  if (!text) return `⟨${id}⟩`;
  return text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
}
