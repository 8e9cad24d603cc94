import assert from "node:assert/strict";
import { test } from "node:test";

import { compare } from "../semver.mjs";

test("numbers are compared as numbers", () => {
  assert.ok(compare("1.2.0", "1.10.0") < 0);
});

test("equal versions", () => {
  assert.equal(compare("1.2.3", "1.2.3"), 0);
});

test("text that is no version", () => {
  assert.throws(() => compare("1.2", "1.2.3"), TypeError);
});
