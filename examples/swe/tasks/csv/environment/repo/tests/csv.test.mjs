import assert from "node:assert/strict";
import { test } from "node:test";

import { parse } from "../csv.mjs";

test("plain rows", () => {
  assert.deepEqual(parse("a,b\nc,d\n"), [["a", "b"], ["c", "d"]]);
});

test("a comma in quotes", () => {
  assert.deepEqual(parse('"a,b",c\n'), [["a,b", "c"]]);
});

test("no end of line at the end", () => {
  assert.deepEqual(parse("a,b"), [["a", "b"]]);
});
