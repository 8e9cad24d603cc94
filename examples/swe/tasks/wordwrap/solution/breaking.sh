#!/bin/bash
# Does what the task asks for, and breaks a test that passed before.
git apply - <<'END'
diff --git a/wordwrap.go b/wordwrap.go
index cada7c1..8fcef4e 100644
--- a/wordwrap.go
+++ b/wordwrap.go
@@ -3,19 +3,27 @@ package wordwrap
 
 import "strings"
 
-// Wrap breaks the text between words, into lines of at most width characters.
+// Wrap breaks the text between words, into lines of at most width characters. Longer words are divided.
 func Wrap(text string, width int) []string {
 	var lines []string
-	line := ""
-	for _, word := range strings.Fields(text) {
-		if line != "" && len(line)+1+len(word) > width {
-			lines = append(lines, line)
-			line = ""
+	var line []rune
+	for _, word := range strings.Split(strings.TrimSpace(text), " ") {
+		letters := []rune(word)
+		if len(line) > 0 && len(line)+1+len(letters) > width {
+			lines = append(lines, string(line))
+			line = nil
 		}
-		if line != "" {
-			line += " "
+		if len(line) > 0 {
+			line = append(line, ' ')
 		}
-		line += word
+		for len(letters) > width {
+			lines = append(lines, string(letters[:width]))
+			letters = letters[width:]
+		}
+		line = append(line, letters...)
+	}
+	if len(line) > 0 {
+		lines = append(lines, string(line))
 	}
-	return append(lines, line)
+	return lines
 }
END
