// Package toposort orders steps that need each other.
package toposort

import "sort"

// Sort returns the steps, each after those that it needs.
func Sort(needs map[string][]string) ([]string, error) {
	var order []string
	seen := map[string]bool{}
	var visit func(step string)
	visit = func(step string) {
		if seen[step] {
			return
		}
		seen[step] = true
		for _, need := range needs[step] {
			visit(need)
		}
		order = append(order, step)
	}
	steps := make([]string, 0, len(needs))
	for step := range needs {
		steps = append(steps, step)
	}
	sort.Strings(steps)
	for _, step := range steps {
		visit(step)
	}
	return order, nil
}
