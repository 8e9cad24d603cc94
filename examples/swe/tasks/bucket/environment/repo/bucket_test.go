package bucket

import (
	"testing"
	"time"
)

var start = time.Unix(1000, 0)

func passed(b *Bucket, at time.Duration, requests int) int {
	count := 0
	for i := 0; i < requests; i++ {
		if b.Allow(start.Add(at)) {
			count++
		}
	}
	return count
}

func TestAFullBucketAllowsItsSize(t *testing.T) {
	b := &Bucket{Size: 3, Rate: 1}
	if got := passed(b, 0, 5); got != 3 {
		t.Fatalf("got %d", got)
	}
}

func TestASecondBringsTokens(t *testing.T) {
	b := &Bucket{Size: 3, Rate: 2}
	passed(b, 0, 5)
	if got := passed(b, time.Second, 5); got != 2 {
		t.Fatalf("got %d", got)
	}
}
