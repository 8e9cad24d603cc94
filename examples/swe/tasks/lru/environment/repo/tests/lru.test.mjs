import assert from "node:assert/strict";
import { test } from "node:test";

import { Lru } from "../lru.mjs";

test("what was set is there", () => {
  const cache = new Lru(2);
  cache.set("a", 1);
  assert.equal(cache.get("a"), 1);
  assert.equal(cache.get("b"), undefined);
});

test("the oldest entry is forgotten", () => {
  const cache = new Lru(2);
  for (const key of ["a", "b", "c"]) cache.set(key, key);
  assert.deepEqual(["a", "b", "c"].map((key) => cache.get(key)), [undefined, "b", "c"]);
});

test("the size never exceeds the limit", () => {
  const cache = new Lru(3);
  for (let key = 0; key < 10; key += 1) cache.set(key, key);
  assert.equal(cache.size, 3);
});
