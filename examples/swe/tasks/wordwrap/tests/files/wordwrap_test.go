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

func TestLettersOfSeveralBytesAreOneCharacter(t *testing.T) {
	check(t, "äöü äöü äöü", 7, "äöü äöü", "äöü")
}

func TestALongWordIsDivided(t *testing.T) {
	check(t, "an incomprehensible word", 6, "an", "incomp", "rehens", "ible", "word")
}

func TestNoWordsAreNoLines(t *testing.T) {
	if got := Wrap("  ", 5); len(got) != 0 {
		t.Fatalf("got %q", got)
	}
}
