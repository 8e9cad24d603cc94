/* Tests that print the Test Anything Protocol. */
#ifndef TAP_H
#define TAP_H

#include <stdio.h>

static int tap_count, tap_failed;

static void ok(int passed, const char *name)
{
    tap_count++;
    tap_failed += !passed;
    printf("%s %d - %s\n", passed ? "ok" : "not ok", tap_count, name);
}

static int done(void)
{
    printf("1..%d\n", tap_count);
    return tap_failed != 0;
}

#endif
