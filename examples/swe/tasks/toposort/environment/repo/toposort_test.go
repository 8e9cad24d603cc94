package toposort

import (
	"strings"
	"testing"
)

func TestStepsComeAfterWhatTheyNeed(t *testing.T) {
	order, err := Sort(map[string][]string{"ship": {"test"}, "test": {"build"}, "build": nil})
	if got := strings.Join(order, " "); err != nil || got != "build test ship" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestStepsThatNeedNothingAreInTheOrderOfTheirNames(t *testing.T) {
	order, err := Sort(map[string][]string{"b": nil, "a": nil})
	if got := strings.Join(order, " "); err != nil || got != "a b" {
		t.Fatalf("got %q, %v", got, err)
	}
}
