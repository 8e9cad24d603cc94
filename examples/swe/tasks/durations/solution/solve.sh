#!/bin/bash
# The reference solution.
git apply - <<'END'
diff --git a/durations.py b/durations.py
index f735b78..183ba05 100644
--- a/durations.py
+++ b/durations.py
@@ -1,17 +1,17 @@
-"""Durations as people write them: `1h30m`, `90s`."""
+"""Durations as people write them: `1d12h`, `1h30m`, `90s`."""
 
 import re
 
-SECONDS = {"h": 3600, "m": 60, "s": 1}
-PART = re.compile(r"(\d+)([hms])")
+SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
+PART = re.compile(r"(\d+)([dhms])")
+WHOLE = re.compile(r"(?:\d+[dhms])+")
 
 
 def parse(text):
     """Seconds. Raises ValueError for text that is no duration."""
-    found = PART.findall(text)
-    if not found:
+    if not WHOLE.fullmatch(text):
         raise ValueError(f"no duration: {text!r}")
-    return sum(int(count) * SECONDS[unit] for count, unit in found)
+    return sum(int(count) * SECONDS[unit] for count, unit in PART.findall(text))
 
 
 def show(seconds):
@@ -21,4 +21,4 @@ def show(seconds):
         count, seconds = divmod(seconds, size)
         if count:
             parts.append(f"{count}{unit}")
-    return "".join(parts)
+    return "".join(parts) or "0s"
END
