#include <string.h>

#include "ini.h"
#include "tap.h"

static const char TEXT[] = "[server]\nport=80\nhost=localhost\n[client]\nport=99\n";
static const char LOOSE[] =
    "; comment\n  [ server ]  \n\n # port = 1\n\tport = 8080  \nname = a b \r\nempty =\nport = 9\n";

int main(void)
{
    char got[16];

    ok(ini_find(TEXT, "server", "port", got, 16) == 2 && strcmp(got, "80") == 0, "a value");
    ok(ini_find(TEXT, "client", "port", got, 16) == 2 && strcmp(got, "99") == 0, "a value of another section");
    ok(ini_find(TEXT, "client", "host", got, 16) == -1, "a key that isn't there");
    ok(ini_find(TEXT, "server", "host", got, 9) == -1, "too little room");
    ok(ini_find(LOOSE, "server", "name", got, 16) == 3 && strcmp(got, "a b") == 0, "spaces around don't count");
    ok(ini_find(LOOSE, "server", "empty", got, 16) == 0 && got[0] == 0, "an empty value");
    ok(ini_find(LOOSE, "server", "port", got, 16) == 1 && strcmp(got, "9") == 0, "the last value counts");
    ok(ini_find(LOOSE, "server", "# port", got, 16) == -1, "a comment is no value");
    return done();
}
