// Package bucket limits how often something may happen.
package bucket

import "time"

// Bucket holds up to Size tokens and gets Rate of them each second.
type Bucket struct {
	Size   int
	Rate   int
	tokens int
	last   time.Time
}

// Allow takes a token, if there is one.
func (b *Bucket) Allow(now time.Time) bool {
	if b.last.IsZero() {
		b.tokens = b.Size
	} else {
		b.tokens += int(now.Sub(b.last).Seconds()) * b.Rate
	}
	b.last = now
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}
