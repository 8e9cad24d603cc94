# Builds and runs the tests; they print the Test Anything Protocol. They are built anew each time.
CFLAGS = -std=c11 -Wall -Wextra -O1 -I. -D_POSIX_C_SOURCE=200809L

.PHONY: check tests/check_ring

check: tests/check_ring
	./tests/check_ring

tests/check_ring: tests/check_ring.c tests/tap.h ring.c ring.h
	$(CC) $(CFLAGS) -o $@ tests/check_ring.c ring.c
