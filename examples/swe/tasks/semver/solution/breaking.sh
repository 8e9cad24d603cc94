#!/bin/bash
# Does what the task asks for, and breaks a test that passed before.
git apply - <<'END'
diff --git a/semver.mjs b/semver.mjs
index 09352f3..f1b2e23 100644
--- a/semver.mjs
+++ b/semver.mjs
@@ -1,16 +1,32 @@
 // Versions by semver.org, 2.0.0.
 
-const VERSION = /^(\d+)\.(\d+)\.(\d+)$/;
+const VERSION = /^(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?$/;
+const NUMBER = /^\d+$/;
 
 function parts(version) {
   const found = VERSION.exec(version);
   if (found === null) throw new TypeError(`no version: ${version}`);
-  return found.slice(1).map(Number);
+  return { numbers: found.slice(1, 4), before: found[4]?.split(".") };
+}
+
+function compareNames(one, other) {
+  if (NUMBER.test(one) && NUMBER.test(other)) return Number(one) - Number(other);
+  if (NUMBER.test(one) !== NUMBER.test(other)) return NUMBER.test(one) ? -1 : 1;
+  return one < other ? -1 : Number(one > other);
+}
+
+function compareBefore(one, other) {
+  if (one === undefined || other === undefined) return Number(one === undefined) - Number(other === undefined);
+  for (let at = 0; at < Math.min(one.length, other.length); at += 1) {
+    const found = compareNames(one[at], other[at]);
+    if (found !== 0) return found;
+  }
+  return one.length - other.length;
 }
 
 // Negative, zero or positive, for sort().
 export function compare(one, other) {
   const [left, right] = [parts(one), parts(other)];
-  const at = left.findIndex((part, index) => part !== right[index]);
-  return at === -1 ? 0 : left[at] - right[at];
+  const at = left.numbers.findIndex((part, index) => part !== right.numbers[index]);
+  return at === -1 ? compareBefore(left.before, right.before) : (left.numbers[at] < right.numbers[at] ? -1 : 1);
 }
END
