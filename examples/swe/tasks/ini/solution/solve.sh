#!/bin/bash
# The reference solution.
git apply - <<'END'
diff --git a/ini.c b/ini.c
index 3b25f11..d292138 100644
--- a/ini.c
+++ b/ini.c
@@ -2,24 +2,50 @@
 
 #include <string.h>
 
+static int is_space(char sign)
+{
+    return sign == ' ' || sign == '\t' || sign == '\r';
+}
+
+/* Makes [*from, *to) shorter until it neither begins nor ends with a space. */
+static void trim(const char **from, const char **to)
+{
+    while (*from < *to && is_space(**from))
+        (*from)++;
+    while (*from < *to && is_space((*to)[-1]))
+        (*to)--;
+}
+
+static int is(const char *from, const char *to, const char *text)
+{
+    trim(&from, &to);
+    return strlen(text) == (size_t)(to - from) && strncmp(from, text, strlen(text)) == 0;
+}
+
 int ini_find(const char *text, const char *section, const char *key, char *to, size_t room)
 {
-    int inside = 0;
-    size_t name = strlen(section), length = strlen(key);
+    int inside = 0, found = -1;
 
-    for (const char *line = text; *line != 0;) {
-        size_t size = strcspn(line, "\n");
-        if (line[0] == '[')
-            inside = size == name + 2 && strncmp(line + 1, section, name) == 0;
-        else if (inside && size > length && strncmp(line, key, length) == 0 && line[length] == '=') {
-            size_t value = size - length - 1;
-            if (value >= room)
+    for (const char *next = text; *next != 0;) {
+        const char *line = next, *end = line + strcspn(line, "\n");
+        const char *equals = memchr(line, '=', (size_t)(end - line));
+        next = end + (*end == '\n');
+        trim(&line, &end);
+        if (line == end || *line == '#' || *line == ';')
+            continue;
+        if (*line == '[' && end[-1] == ']')
+            inside = is(line + 1, end - 1, section);
+        else if (inside && equals != NULL && is(line, equals, key)) {
+            const char *value = equals + 1;
+            if (value > end)
+                value = end;
+            trim(&value, &end);
+            if ((size_t)(end - value) >= room)
                 return -1;
-            memcpy(to, line + length + 1, value);
-            to[value] = 0;
-            return (int)value;
+            found = (int)(end - value);
+            memcpy(to, value, (size_t)found);
+            to[found] = 0;
         }
-        line += size + (line[size] == '\n');
     }
-    return -1;
+    return found;
 }
END
