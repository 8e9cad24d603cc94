# Builds and runs the tests; they print the Test Anything Protocol.
CFLAGS = -std=c11 -Wall -Wextra -O1 -I. -D_POSIX_C_SOURCE=200809L

check: tests/check_ini
	./tests/check_ini

tests/check_ini: tests/check_ini.c tests/tap.h ini.c ini.h
	$(CC) $(CFLAGS) -o $@ tests/check_ini.c ini.c
