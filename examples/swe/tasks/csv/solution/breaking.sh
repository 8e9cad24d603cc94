#!/bin/bash
# Does what the task asks for, and breaks a test that passed before.
git apply - <<'END'
diff --git a/csv.mjs b/csv.mjs
index fd67910..eca28c4 100644
--- a/csv.mjs
+++ b/csv.mjs
@@ -5,13 +5,20 @@ export function parse(text) {
   let row = [];
   let field = "";
   let quoted = false;
-  for (const char of text) {
-    if (char === '"') {
+  for (let at = 0; at < text.length; at += 1) {
+    const char = text[at];
+    if (char === '"' && quoted && text[at + 1] === '"') {
+      field += '"';
+      at += 1;
+    } else if (char === '"') {
       quoted = !quoted;
-    } else if (char === "," && !quoted) {
+    } else if (quoted) {
+      field += char;
+    } else if (char === ",") {
       row.push(field);
       field = "";
-    } else if (char === "\n") {
+    } else if (char === "\n" || (char === "\r" && text[at + 1] === "\n")) {
+      at += char === "\r" ? 1 : 0;
       row.push(field);
       rows.push(row);
       row = [];
@@ -20,7 +27,7 @@ export function parse(text) {
       field += char;
     }
   }
-  if (field !== "" || row.length > 0) {
+  if (field !== "" && row.length === 0) {
     row.push(field);
     rows.push(row);
   }
END
