/**
 * A list of which only the rows in view are elements.
 *
 * Invariant: the number of elements depends on the height of the window alone; elements are used again as one scrolls. The list is an ARIA
 * grid: the scroller has the focus and `aria-activedescendant` names the active row.
 */

import { h } from "./dom.js";

const SPARE = 4;

/**
 * @template Item
 * @typedef {Object} Options
 * @property {string} label what the list holds
 * @property {string} id begins the ids of rows
 * @property {number} rowHeight in CSS pixels
 * @property {HTMLElement} header the row of column headers
 * @property {(item: Item) => string} keyOf
 * @property {() => HTMLElement} make an empty row
 * @property {(row: HTMLElement, item: Item) => void} draw
 * @property {(item: Item) => void} open
 */

/** @template Item */
export class Windowed {
  /** @param {Options<Item>} options */
  constructor(options) {
    this.options = options;
    this.items = [];
    this.active = null;
    this.body = h("div", { role: "rowgroup", class: "rows" });
    this.element = h(
      "div",
      { role: "grid", class: "grid", tabindex: "0", "aria-label": options.label, "aria-readonly": "true", id: options.id },
      h("div", { role: "rowgroup", class: "head" }, options.header),
      this.body,
    );
    this.pool = [];
    this.frame = 0;
    this.element.addEventListener("scroll", () => this.schedule(), { passive: true });
    this.element.addEventListener("click", (event) => this.clicked(event));
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(this.element);
  }

  /**
   * Show these items. What is in view stays in place if rows come above it.
   * @param {Item[]} items
   * @param {boolean} [fromTop] begin at the top again
   */
  set(items, fromTop = false) {
    const top = this.element.scrollTop;
    const first = Math.floor(top / this.options.rowHeight);
    const anchor = !fromTop && top > 0 && this.items[first] ? this.options.keyOf(this.items[first]) : null;
    const before = this.items;
    this.items = items;
    this.body.style.height = `${items.length * this.options.rowHeight}px`;
    this.element.setAttribute("aria-rowcount", String(items.length + 1));
    if (fromTop) this.element.scrollTop = 0;
    else if (anchor !== null && items !== before) this.keep(anchor, first, top);
    this.draw();
  }

  /**
   * Make an item the active one and bring it into view.
   * @param {number} index
   */
  activate(index) {
    if (this.items.length === 0) return;
    const to = Math.max(0, Math.min(this.items.length - 1, index));
    this.active = this.options.keyOf(this.items[to]);
    const { rowHeight } = this.options;
    const view = this.element.clientHeight - this.body.offsetTop;
    if (to * rowHeight < this.element.scrollTop) this.element.scrollTop = to * rowHeight;
    else if ((to + 1) * rowHeight > this.element.scrollTop + view) this.element.scrollTop = (to + 1) * rowHeight - view;
    this.draw();
  }

  /** @param {number} step rows down; negative: up */
  move(step) {
    const at = this.activeIndex();
    this.activate(at < 0 ? 0 : at + step);
  }

  /** Open the active item, if there is one. */
  openActive() {
    const at = this.activeIndex();
    if (at >= 0) this.options.open(this.items[at]);
  }

  /** @returns {number} -1: none is active, or it isn't shown */
  activeIndex() {
    return this.active === null ? -1 : this.items.findIndex((item) => this.options.keyOf(item) === this.active);
  }

  /** Draw again at the next frame. */
  schedule() {
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  /** End the list. */
  stop() {
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
  }

  keep(anchor, first, top) {
    const near = this.items.slice(first, first + 400).findIndex((item) => this.options.keyOf(item) === anchor);
    const found = near < 0 ? this.items.findIndex((item) => this.options.keyOf(item) === anchor) : first + near;
    if (found >= 0 && found !== first) this.element.scrollTop = top + (found - first) * this.options.rowHeight;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { rowHeight, draw, keyOf, id } = this.options;
    const first = Math.max(0, Math.floor(this.element.scrollTop / rowHeight) - SPARE);
    const count = Math.ceil(this.element.clientHeight / rowHeight) + 2 * SPARE;
    const shown = Math.max(0, Math.min(this.items.length - first, count));
    let activeId = null;
    for (let i = 0; i < shown; i += 1) {
      const item = this.items[first + i];
      const row = this.row(i);
      row.hidden = false;
      row.style.transform = `translateY(${(first + i) * rowHeight}px)`;
      row.setAttribute("aria-rowindex", String(first + i + 2));
      row.dataset.key = keyOf(item);
      const isActive = keyOf(item) === this.active;
      row.setAttribute("aria-selected", String(isActive));
      if (isActive) activeId = `${id}-${i}`;
      draw(row, item);
    }
    for (let i = shown; i < this.pool.length; i += 1) this.pool[i].hidden = true;
    if (activeId) this.element.setAttribute("aria-activedescendant", activeId);
    else this.element.removeAttribute("aria-activedescendant");
  }

  row(index) {
    if (!this.pool[index]) {
      const row = this.options.make();
      row.id = `${this.options.id}-${index}`;
      this.pool[index] = row;
      this.body.append(row);
    }
    return this.pool[index];
  }

  clicked(event) {
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.target.closest("a, button")) return;
    const row = event.target.closest("[data-key]");
    const at = row ? this.items.findIndex((item) => this.options.keyOf(item) === row.dataset.key) : -1;
    if (at < 0) return;
    this.activate(at);
    this.options.open(this.items[at]);
  }
}
