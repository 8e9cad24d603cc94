#!/bin/bash
# The reference solution.
git apply - <<'END'
diff --git a/bucket.go b/bucket.go
index f9c5aff..b292793 100644
--- a/bucket.go
+++ b/bucket.go
@@ -8,17 +8,21 @@ type Bucket struct {
 	Size   int
 	Rate   int
 	tokens int
-	last   time.Time
+	since  time.Time // the tokens were counted until then
 }
 
 // Allow takes a token, if there is one.
 func (b *Bucket) Allow(now time.Time) bool {
-	if b.last.IsZero() {
+	if b.since.IsZero() {
+		b.tokens, b.since = b.Size, now
+	} else if passed := now.Sub(b.since); passed > 0 {
+		each := time.Second / time.Duration(b.Rate)
+		b.tokens += int(passed / each)
+		b.since = now.Add(-(passed % each))
+	}
+	if b.tokens > b.Size {
 		b.tokens = b.Size
-	} else {
-		b.tokens += int(now.Sub(b.last).Seconds()) * b.Rate
 	}
-	b.last = now
 	if b.tokens == 0 {
 		return false
 	}
END
