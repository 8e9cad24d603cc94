#!/bin/bash
# The reference solution.
git apply - <<'END'
diff --git a/ring.c b/ring.c
index 1d425bd..060e3fe 100644
--- a/ring.c
+++ b/ring.c
@@ -2,9 +2,11 @@
 
 size_t ring_write(struct ring *ring, const unsigned char *from, size_t count)
 {
-    for (size_t i = 0; i < count; i++)
+    size_t free = RING_SIZE - ring->used;
+    size_t moved = count < free ? count : free;
+    for (size_t i = 0; i < moved; i++)
         ring->data[(ring->head + ring->used++) % RING_SIZE] = from[i];
-    return count;
+    return moved;
 }
 
 size_t ring_read(struct ring *ring, unsigned char *to, size_t count)
@@ -12,7 +14,12 @@ size_t ring_read(struct ring *ring, unsigned char *to, size_t count)
     size_t moved = count < ring->used ? count : ring->used;
     for (size_t i = 0; i < moved; i++)
         to[i] = ring->data[(ring->head + i) % RING_SIZE];
-    ring->head += moved;
+    ring->head = (ring->head + moved) % RING_SIZE;
     ring->used -= moved;
     return moved;
 }
+
+int ring_peek(const struct ring *ring)
+{
+    return ring->used > 0 ? ring->data[ring->head] : -1;
+}
diff --git a/ring.h b/ring.h
index 51db5a6..7b95046 100644
--- a/ring.h
+++ b/ring.h
@@ -15,4 +15,7 @@ struct ring {
 size_t ring_write(struct ring *ring, const unsigned char *from, size_t count);
 size_t ring_read(struct ring *ring, unsigned char *to, size_t count);
 
+/* The byte that is read next, or -1. */
+int ring_peek(const struct ring *ring);
+
 #endif
END
