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

test("an entry that was read is newer", () => {
  const cache = new Lru(2);
  cache.set("a", 1);
  cache.set("b", 2);
  cache.get("a");
  cache.set("c", 3);
  assert.deepEqual(["a", "b", "c"].map((key) => cache.get(key)), [1, undefined, 3]);
});

test("an entry that was set again is newer", () => {
  const cache = new Lru(2);
  cache.set("a", 1);
  cache.set("b", 2);
  cache.set("a", undefined);
  cache.get("a");
  cache.set("c", 3);
  assert.deepEqual([cache.has("a"), cache.has("b"), cache.has("c")], [true, false, true]);
});
