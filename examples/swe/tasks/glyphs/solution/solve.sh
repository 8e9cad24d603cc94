#!/bin/bash
# The reference solution.
git apply - <<'END'
diff --git a/font.bin b/font.bin
index 19a75a1302c975d5e4ce38b2ce5443fb8a29ac48..71f60988bc8de5712a6013825aaea499ea04bfe0 100644
GIT binary patch
delta 27
icmcDr5_R{9G<1|uadN72a$<0;b8x6}aHyLostN#I&<8RA

delta 27
icmcDr5_R{9G<1|uadN72a$<0;b8u*OaA=$;stN#J4F@~`

diff --git a/glyphs.py b/glyphs.py
index 5d12629..aecf6f1 100644
--- a/glyphs.py
+++ b/glyphs.py
@@ -11,6 +11,8 @@ def load(data):
     if not data.startswith(HEADER):
         raise ValueError("no font: it doesn't begin with GLY1")
     body, size = data[len(HEADER) :], HEIGHT + 1
+    if len(body) % size:
+        raise ValueError("no font: its last letter ends early")
     return {chr(body[at]): list(body[at + 1 : at + size]) for at in range(0, len(body), size)}
 
 
END
