#!/bin/bash
# Does what the task asks for, and breaks a test that passed before.
git apply - <<'END'
diff --git a/toposort.go b/toposort.go
index 257c843..12138ee 100644
--- a/toposort.go
+++ b/toposort.go
@@ -1,30 +1,46 @@
 // Package toposort orders steps that need each other.
 package toposort
 
-import "sort"
+import (
+	"fmt"
+	"sort"
+	"strings"
+)
 
-// Sort returns the steps, each after those that it needs.
+// Sort returns the steps, each after those that it needs. A circle is an error that names it.
 func Sort(needs map[string][]string) ([]string, error) {
-	var order []string
+	var order, path []string
 	seen := map[string]bool{}
-	var visit func(step string)
-	visit = func(step string) {
+	var visit func(step string) error
+	visit = func(step string) error {
+		for at, earlier := range path {
+			if earlier == step {
+				return fmt.Errorf("circle: %s", strings.Join(append(path[at:], step), " -> "))
+			}
+		}
 		if seen[step] {
-			return
+			return nil
 		}
 		seen[step] = true
+		path = append(path, step)
 		for _, need := range needs[step] {
-			visit(need)
+			if err := visit(need); err != nil {
+				return err
+			}
 		}
+		path = path[:len(path)-1]
 		order = append(order, step)
+		return nil
 	}
 	steps := make([]string, 0, len(needs))
 	for step := range needs {
 		steps = append(steps, step)
 	}
-	sort.Strings(steps)
+	sort.Sort(sort.Reverse(sort.StringSlice(steps)))
 	for _, step := range steps {
-		visit(step)
+		if err := visit(step); err != nil {
+			return nil, err
+		}
 	}
 	return order, nil
 }
END
