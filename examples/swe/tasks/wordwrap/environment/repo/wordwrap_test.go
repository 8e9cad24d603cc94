package wordwrap

import (
	"reflect"
	"testing"
)

func check(t *testing.T, text string, width int, want ...string) {
	t.Helper()
	if got := Wrap(text, width); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestLinesBreakBetweenWords(t *testing.T) {
	check(t, "the quick brown fox", 10, "the quick", "brown fox")
}

func TestSpacesAreOne(t *testing.T) {
	check(t, "  a   b ", 10, "a b")
}
