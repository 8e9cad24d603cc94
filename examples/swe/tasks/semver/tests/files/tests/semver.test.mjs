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

test("the order of pre-releases", () => {
  const order = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0"];
  assert.deepEqual(order.toReversed().sort(compare), order);
});

test("build metadata says nothing", () => {
  assert.equal(compare("1.0.0+a", "1.0.0+b"), 0);
});

test("an empty part of a pre-release is refused", () => {
  assert.throws(() => compare("1.0.0-", "1.0.0"), TypeError);
  assert.throws(() => compare("1.0.0-a..b", "1.0.0"), TypeError);
});
