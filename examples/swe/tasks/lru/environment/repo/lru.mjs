// A cache that forgets what was used longest ago.

export class Lru {
  #entries = new Map();
  #limit;

  constructor(limit) {
    this.#limit = limit;
  }

  get size() {
    return this.#entries.size;
  }

  get(key) {
    return this.#entries.get(key);
  }

  set(key, value) {
    this.#entries.set(key, value);
    if (this.#entries.size > this.#limit) {
      this.#entries.delete(this.#entries.keys().next().value);
    }
  }
}
