# Builds and runs the tests; they print the Test Anything Protocol.
CFLAGS = -std=c11 -Wall -Wextra -O1 -I. -D_POSIX_C_SOURCE=200809L

check: tests/check_base64
	./tests/check_base64

tests/check_base64: tests/check_base64.c tests/tap.h base64.c base64.h
	$(CC) $(CFLAGS) -o $@ tests/check_base64.c base64.c
