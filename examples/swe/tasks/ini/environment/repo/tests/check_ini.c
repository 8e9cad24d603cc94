#include <string.h>

#include "ini.h"
#include "tap.h"

static const char TEXT[] = "[server]\nport=80\nhost=localhost\n[client]\nport=99\n";

int main(void)
{
    char got[16];

    ok(ini_find(TEXT, "server", "port", got, 16) == 2 && strcmp(got, "80") == 0, "a value");
    ok(ini_find(TEXT, "client", "port", got, 16) == 2 && strcmp(got, "99") == 0, "a value of another section");
    ok(ini_find(TEXT, "client", "host", got, 16) == -1, "a key that isn't there");
    ok(ini_find(TEXT, "server", "host", got, 9) == -1, "too little room");
    return done();
}
