GOFLAGS=-mod=mod GOTOOLCHAIN=local go test -count=1 -vet=off -v .
