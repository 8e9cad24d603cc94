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

func TestACircleIsAnErrorThatNamesIt(t *testing.T) {
	order, err := Sort(map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"b"}})
	if order != nil || err == nil || err.Error() != "circle: b -> c -> b" {
		t.Fatalf("got %q, %v", order, err)
	}
}

func TestAStepThatNeedsItselfIsACircle(t *testing.T) {
	if _, err := Sort(map[string][]string{"a": {"a"}}); err == nil || err.Error() != "circle: a -> a" {
		t.Fatalf("got %v", err)
	}
}

func TestAStepThatTwoNeedIsNoCircle(t *testing.T) {
	order, err := Sort(map[string][]string{"a": {"c"}, "b": {"c"}})
	if got := strings.Join(order, " "); err != nil || got != "c a b" {
		t.Fatalf("got %q, %v", got, err)
	}
}
