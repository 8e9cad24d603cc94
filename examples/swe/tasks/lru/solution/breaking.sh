#!/bin/bash
# Does what the task asks for, and breaks a test that passed before.
git apply - <<'END'
diff --git a/lru.mjs b/lru.mjs
index 23a95ca..6687629 100644
--- a/lru.mjs
+++ b/lru.mjs
@@ -12,13 +12,21 @@ export class Lru {
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
-    if (this.#entries.size > this.#limit) {
+    if (this.#entries.size > this.#limit + 1) {
       this.#entries.delete(this.#entries.keys().next().value);
     }
   }
END
