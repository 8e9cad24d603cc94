#!/bin/bash
# The reference solution.
git apply - <<'END'
diff --git a/base64.c b/base64.c
index 5473366..e908f22 100644
--- a/base64.c
+++ b/base64.c
@@ -6,15 +6,22 @@ static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuv
 
 long base64_decode(const char *text, unsigned char *to, size_t room)
 {
-    size_t length = strlen(text), count = 0;
+    size_t length = strlen(text), count = 0, padding = 0;
     unsigned bits = 0;
-    for (size_t i = 0; i < length; i++) {
+    if (length % 4 != 0)
+        return -1;
+    while (padding < 2 && padding < length && text[length - 1 - padding] == '=')
+        padding++;
+    for (size_t i = 0; i < length - padding; i++) {
         const char *found = strchr(ALPHABET, text[i]);
         if (found == NULL)
             return -1;
         bits = bits << 6 | (unsigned)(found - ALPHABET);
-        if (i % 4 != 0 && count < room)
-            to[count++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
+        if (i % 4 == 0)
+            continue;
+        if (count == room)
+            return -1;
+        to[count++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
     }
     return (long)count;
 }
END
