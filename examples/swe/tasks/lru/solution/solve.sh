#!/bin/bash
# The reference solution.
git apply - <<'END'
diff --git a/lru.mjs b/lru.mjs
index 23a95ca..1f5f1d8 100644
--- a/lru.mjs
+++ b/lru.mjs
@@ -12,11 +12,19 @@ export class Lru {
     return this.#entries.size;
   }
 
+  has(key) {
+    return this.#entries.has(key);
+  }
+
   get(key) {
-    return this.#entries.get(key);
+    if (!this.#entries.has(key)) return undefined;
+    const value = this.#entries.get(key);
+    this.set(key, value);
+    return value;
   }
 
   set(key, value) {
+    this.#entries.delete(key);
     this.#entries.set(key, value);
     if (this.#entries.size > this.#limit) {
       this.#entries.delete(this.#entries.keys().next().value);
END
